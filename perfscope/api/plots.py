"""Charts of a run or a comparison on matplotlib axes, in the colors of the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.results import Breakdown
from perfscope.api.columns import not_installed
from perfscope.errors import PerfscopeError, UsageError
from perfscope.messages.efficiency import TITLES
from perfscope.reports.display import visible
from perfscope.reports.palette import light_palette
from perfscope.settings import nearest
from perfscope.vocabulary.efficiency import PopFactor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats: TypeAlias = NDArray[np.float64]  # shape (rows,)
GetTable: TypeAlias = Callable[[str], pa.Table]
_MS = 1e6  # ns
_HEIGHT = 0.35  # inches of a bar
_LONGEST_NAME = 60  # characters


def axes(ax: Axes | None, num_bars: int = 0) -> Axes:
    """The axes to draw on, new ones where none are given; tall enough for that many horizontal bars.

    Raises:
        PerfscopeError: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise not_installed("matplotlib") from None
    height = max(2.0, 1.0 + _HEIGHT * num_bars) if num_bars else 4.0
    made: Axes = plt.subplots(figsize=(8, height), layout="constrained")[1]
    return made


class RunPlots:
    """Charts of one run: each method draws on `ax`, or new axes, and returns them."""

    def __init__(self, name: str, table: GetTable, efficiency: Efficiency | None) -> None:
        self._name = name
        self._table = table
        self._efficiency = efficiency

    def breakdown(self, ax: Axes | None = None) -> Axes:
        """Where the mean traced step of each rank went, in ms.

        Examples:
            >>> run.plot.breakdown().get_xlabel()
            'time per step (ms)'
        """
        table = self._rows("ranks", "traced_step_ns", "no step was traced")
        names = [f"rank {rank}" for rank in table["rank"].to_pylist()]
        parts = {part: _filled(table[f"{part}_ns"]) / _MS for part in Breakdown.PARTS}
        ax = _stacked(axes(ax, len(names)), names, parts)
        ax.set(xlabel="time per step (ms)", title="Step breakdown")
        return ax

    def steps(self, ax: Axes | None = None) -> Axes:
        """The time of each step of each rank, in ms; traced steps are marked."""
        table = self._rows("steps", "dur_ns", "no step was recorded")
        ax = axes(ax)
        for rank in pc.unique(table["rank"]).to_pylist():
            rows = table.filter(pc.equal(table["rank"], rank))
            step, duration = rows["step"].to_numpy(), rows["dur_ns"].to_numpy() / _MS
            (line,) = ax.plot(step, duration, linewidth=1, label=f"rank {rank}")
            traced = rows["window"].to_numpy() >= 0
            ax.plot(step[traced], duration[traced], "o", markersize=4, color=line.get_color())
        ax.set(xlabel="step", ylabel="step time (ms)", title="Step times (traced steps marked)")
        ax.set_ylim(bottom=0)
        _legend(ax)
        return ax

    def layers(self, ax: Axes | None = None, *, top: int = 20) -> Axes:
        """Forward, backward and exposed communication of the layers with most time, in ms.

        Args:
            ax: to draw on; None = new axes.
            top: number of layers.
        """
        table = self._rows("layers", "layer", "no layer was traced")
        parts = {name: _filled(table[f"{name}_ns"]) / _MS for name in ("forward", "backward", "exposed_comm")}
        order = np.argsort(-np.sum(list(parts.values()), axis=0), kind="stable")[:top]
        names = [table["layer"][int(row)].as_py() or "(whole model)" for row in order]
        ax = _stacked(axes(ax, len(names)), names, {name: times[order] for name, times in parts.items()})
        ax.set(xlabel="time per step (ms)", title=f"Layers ({len(names)} of {table.num_rows})")
        return ax

    def collectives(self, ax: Axes | None = None) -> Axes:
        """Time in each collective of each process group: waiting and transfer, in ms."""
        table = self._rows("collectives", "transfer_ns", "no call was matched across ranks")
        pairs = zip(table["collective"].to_pylist(), table["group"].to_pylist(), strict=True)
        names = [f"{collective} · {group}" for collective, group in pairs]
        parts = {name: _filled(table[f"{name}_ns"]) / _MS for name in ("wait", "transfer")}
        ax = _stacked(axes(ax, len(names)), names, parts)
        ax.set(xlabel="time in all traced steps, mean over ranks (ms)", title="Collectives")
        return ax

    def counters(self, metric: str | None = None, ax: Axes | None = None) -> Axes:
        """A hardware counter of each host over the run.

        Args:
            metric: name or title of it in the table `samples`; None = the first one there.
            ax: to draw on; None = new axes.

        Raises:
            UsageError: no counter of that name was recorded.
        """
        table = self._rows("samples", "metric", "no hardware counter was recorded")
        metric = metric if metric is not None else table["title"][0].as_py()
        chosen = table.filter(pc.or_(pc.equal(table["metric"], metric), pc.equal(table["title"], metric)))
        if not chosen.num_rows:
            names = [*pc.unique(table["title"]).to_pylist(), *pc.unique(table["metric"]).to_pylist()]
            raise UsageError(f"there is no counter {metric!r}{nearest(metric, names)}")
        ax = axes(ax)
        start = pc.min(table["t_ns"]).as_py()
        hosts = pc.unique(chosen["host"]).to_pylist()
        for host, name in sorted(
            {*zip(chosen["host"].to_pylist(), chosen["metric"].to_pylist(), strict=True)}
        ):
            rows = chosen.filter(pc.and_(pc.equal(chosen["host"], host), pc.equal(chosen["metric"], name)))
            seconds = (rows["t_ns"].to_numpy() - start) / 1e9
            (line,) = ax.plot(
                seconds, _filled(rows["mean"], np.nan), label=_shown(host if len(hosts) > 1 else name)
            )
            ax.fill_between(
                *(seconds, _filled(rows["low"], np.nan), _filled(rows["high"], np.nan)),
                color=line.get_color(),
                alpha=0.2,
            )
        if chosen["unit"][0].as_py() == "ratio":
            ax.set_ylim(0, 1.05)
        ax.set(xlabel="time (s)", ylabel=chosen["unit"][0].as_py(), title=_shown(chosen["title"][0].as_py()))
        _legend(ax)
        return ax

    def roofline(self, ax: Axes | None = None) -> Axes:
        """Arithmetic intensity and speed of each layer, below the ceilings of the first device."""
        table = self._rows("roofline", "intensity_flop_per_byte", "there is no roofline")
        host, device = table["host"][0].as_py(), table["device"][0].as_py()
        table = table.filter(pc.and_(pc.equal(table["host"], host), pc.equal(table["device"], device)))
        ax = axes(ax)
        for phase, marker in (("forward", "o"), ("backward", "s")):
            rows = table.filter(pc.equal(table["phase"], phase))
            x, y = rows["intensity_flop_per_byte"].to_numpy(), rows["flops_per_s"].to_numpy() / 1e9
            ax.plot(x, y, marker, color=light_palette()[f"part-{phase}"], label=phase)
        order = np.argsort(table["intensity_flop_per_byte"].to_numpy())
        roof = table["attainable_flops_per_s"].to_numpy()[order] / 1e9
        ax.plot(table["intensity_flop_per_byte"].to_numpy()[order], roof, color="black", label="ceiling")
        ax.set(xscale="log", yscale="log", title=_shown(f"Roofline: {device} on {host}"))
        ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="GFLOP/s")
        _legend(ax)
        return ax

    def efficiency(self, ax: Axes | None = None) -> Axes:
        """The factors of parallel efficiency that this run has.

        Raises:
            PerfscopeError: there are none.
        """
        factors = self._efficiency
        measured = [
            (TITLES[factor], value)
            for factor in PopFactor
            if factors is not None and (value := getattr(factors, factor.value, None)) is not None
        ]
        if not measured:
            raise PerfscopeError(f"{self._name}: efficiency is not known; run.missing says why")
        names = [name for name, _ in measured]
        values = {"compute": np.array([value for _, value in measured])}
        ax = _stacked(axes(ax, len(names)), names, values)
        ax.set(xlabel="ratio", xlim=(0, 1), title="Parallel efficiency")
        if (legend := ax.get_legend()) is not None:
            legend.remove()
        return ax

    def _rows(self, name: str, needed: str, reason: str) -> pa.Table:
        """Rows of a table that have the column. Raises PerfscopeError: there are none."""
        table = self._table(name)
        table = table.filter(pc.is_valid(table[needed]))
        if not table.num_rows:
            raise PerfscopeError(f"{self._name}: {reason}; run.missing says why")
        return table


class StudyPlots:
    """Charts of a comparison."""

    def __init__(self, table: GetTable) -> None:
        self._table = table

    def speedup(self, ax: Axes | None = None) -> Axes:
        """Speedup over the number of ranks, with the ideal.

        Raises:
            PerfscopeError: the runs do not scale one thing over several numbers of ranks.
        """
        ax = self._scaling("speedup", axes(ax))
        table = self._table("scaling")
        ranks = sorted({*table["world_size"].to_pylist()})
        ideal = dict(zip(table["world_size"].to_pylist(), table["ideal_speedup"].to_pylist(), strict=True))
        ax.plot(ranks, [ideal[rank] for rank in ranks], "--", color="gray", label="ideal")
        ax.set(ylabel="speedup", title="Speedup")
        _legend(ax)
        return ax

    def efficiency(self, ax: Axes | None = None) -> Axes:
        """Scaling efficiency over the number of ranks.

        Raises:
            PerfscopeError: the runs do not scale one thing over several numbers of ranks.
        """
        ax = self._scaling("efficiency", axes(ax))
        ax.set(ylabel="efficiency", title="Scaling efficiency", ylim=(0, 1.1))
        _legend(ax)
        return ax

    def _scaling(self, column: str, ax: Axes) -> Axes:
        table = self._table("scaling")
        if not table.num_rows:
            raise PerfscopeError("these runs give no scaling figures; study.analysis.problems says why")
        for series in pc.unique(table["series"]).to_pylist():
            rows = table.filter(pc.equal(table["series"], series))
            ax.plot(
                rows["world_size"].to_numpy(),
                rows[column].to_numpy(),
                "o-",
                label=_shown(series or "measured"),
            )
        ax.set(xlabel="ranks")
        return ax


def _filled(column: pa.ChunkedArray, value: float = 0.0) -> Floats:
    filled: Floats = pc.fill_null(column.cast(pa.float64()), value).to_numpy()
    return filled


def _stacked(ax: Axes, names: Sequence[str], parts: dict[str, Floats]) -> Axes:
    """Horizontal bars from the top down, a color per part; parts that are 0 everywhere are left out."""
    palette = light_palette()
    left = np.zeros(len(names))
    for part, values in parts.items():
        if values.any():
            label = part.replace("_", " ")
            ax.barh(range(len(names)), values, left=left, color=palette[f"part-{part}"], label=label)
            left = left + values
    ax.set_yticks(range(len(names)), [_shown(name) for name in names])
    ax.invert_yaxis()
    _legend(ax)
    return ax


def _shown(name: str) -> str:
    """A recorded name on one line; matplotlib would typeset what is between dollar signs."""
    return visible(name, _LONGEST_NAME).replace("$", r"\$")


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
