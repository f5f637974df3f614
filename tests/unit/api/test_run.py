"""`perfscope.open` and `perfscope.load_traces`: tables, charts and documents of one run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import perfscope
from perfscope.api.run import TABLES, TIMELINE
from perfscope.errors import PerfscopeError, UsageError
from tests.support.synthetic_run import SyntheticRun, comm, span

TRACES = Path(__file__).parents[2] / "data" / "traces"
MS = 1_000_000


@pytest.fixture(autouse=True)
def no_display() -> Iterator[None]:
    import matplotlib.pyplot as plt

    mpl.use("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def dlrm() -> perfscope.Run:
    """8 GPU ranks, matched collectives."""
    return perfscope.load_traces(TRACES / "dlrm_v100_8ranks")


@pytest.fixture(scope="module")
def gloo() -> perfscope.Run:
    """2 CPU ranks, layers."""
    return perfscope.load_traces(TRACES / "cpu_gloo_2ranks")


def small_run(path: Path, name: str = "small") -> Path:
    run = SyntheticRun(path, name=name, expected_ranks=2, attached_ranks=2)
    for rank in range(2):
        run.rank(rank, world_size=2)
        run.steps(rank, [10 * MS] * 30)
    return path


def test_tables_hold_what_the_json_report_says(dlrm: perfscope.Run) -> None:
    document = json.loads(dlrm.report("json"))
    ranks = dlrm.table("ranks").to_pylist()
    assert [row["rank"] for row in ranks] == list(range(8))
    for row, entry in zip(ranks, document["ranks"], strict=True):
        assert row["compute_ns"] == entry["breakdown_ns"]["compute"]
        assert row["traced_step_ns"] == entry["breakdown_step_ns"]
    collectives = dlrm.table("collectives").to_pylist()
    for row, entry in zip(collectives, document["collectives"], strict=True):
        assert {name: entry[name] for name in row} == row
    assert dlrm.table("findings")["title"].to_pylist() == [entry["title"] for entry in document["findings"]]
    assert dlrm.verdict is not None and dlrm.verdict.text.title == document["findings"][0]["title"]


def test_arrivals_of_ranks_give_the_waits_of_the_calls(dlrm: perfscope.Run) -> None:
    arrivals, calls = dlrm.frame("arrivals"), dlrm.frame("calls")
    key = ["window", "collective", "group", "seq"]
    by_call = arrivals.groupby(key).agg(first=("enter_ns", "min"), last=("enter_ns", "max")).reset_index()
    merged = calls.merge(by_call, on=key, validate="one_to_one")
    assert len(merged) == len(calls) > 0
    assert ((merged["last"] - merged["first"]) == merged["start_skew_ns"]).all()
    assert (merged["last"] == merged["start_ns"]).all()


def test_layers_of_ranks_average_to_the_layers(gloo: perfscope.Run) -> None:
    layers, of_ranks = gloo.frame("layers"), gloo.frame("rank_layers")
    assert len(layers) > 3
    means = of_ranks.groupby("layer")["forward_ns"].sum() / 2
    for row in layers.itertuples():
        assert means[row.layer] == pytest.approx(row.forward_ns, abs=1)


def test_kernels_and_operators_divide_the_same_time(dlrm: perfscope.Run) -> None:
    kernels = dlrm.analysis.kernels
    assert kernels is not None
    for name in ("kernels", "operators"):
        assert pc.sum(dlrm.table(name)["total_ns"]).as_py() == kernels.total_ns
        assert pc.sum(dlrm.table(name)["share_ratio"]).as_py() == pytest.approx(1)


def test_exposed_time_by_layer_and_axis_adds_up(dlrm: perfscope.Run) -> None:
    communication = dlrm.analysis.communication
    assert communication is not None
    assert pc.sum(dlrm.table("layer_axes")["exposed_ns"]).as_py() == communication.exposed_ns
    assert pc.sum(dlrm.table("axes")["exposed_ns"]).as_py() == communication.exposed_ns


def test_a_missing_figure_is_null_and_na(tmp_path: Path) -> None:
    """No window was traced."""
    run = perfscope.open(small_run(tmp_path / "run"))
    assert run.table("ranks")["compute_ns"].to_pylist() == [None, None]
    frame = run.ranks
    assert frame["compute_ns"].isna().all() and frame["compute_ns"].dtype == pd.ArrowDtype(pa.int64())
    assert (frame["step_median_ns"] == 10 * MS).all()
    assert len(run.missing) > 0 and run.missing["reason"].str.len().min() > 0


def test_every_table_is_a_property_and_an_unknown_one_is_refused(dlrm: perfscope.Run) -> None:
    for name in TABLES:
        if name != TIMELINE:
            assert getattr(dlrm, name).columns.tolist() == dlrm.table(name).column_names
    with pytest.raises(UsageError, match="no table 'layer'; did you mean 'layers'"):
        dlrm.table("layer")
    with pytest.raises(UsageError, match="no column 'durns'"):
        dlrm.timeline(columns=["durns"])


def test_the_timeline_is_selected_by_rank_and_column(dlrm: perfscope.Run) -> None:
    part = dlrm.timeline(ranks=[3, 5], columns=["rank", "dur_ns"])
    assert part.column_names == ["rank", "dur_ns"]
    assert set(part["rank"].to_pylist()) == {3, 5}
    assert dlrm.timeline(ranks=[99], columns=["rank"]).num_rows == 0
    whole = dlrm.timeline(columns=["rank"])
    assert part.num_rows == sum(whole["rank"].to_pylist().count(rank) for rank in (3, 5))


@pytest.mark.parametrize("table", TABLES)
def test_tables_survive_every_format(dlrm: perfscope.Run, table: str, tmp_path: Path) -> None:
    expected = dlrm.table(table)
    read = {
        "parquet": pq.read_table,
        "csv": pyarrow.csv.read_csv,
        "arrow": lambda path: pa.ipc.open_file(path).read_all(),
    }
    for name, reader in read.items():
        path = tmp_path / f"table.{name}"
        assert dlrm.export(name, path, table=table) == expected.num_rows
        if expected.num_rows:
            again = reader(path)
            assert (again.num_rows, again.column_names) == (expected.num_rows, expected.column_names)


def test_an_export_that_has_no_place_for_a_table_is_refused(dlrm: perfscope.Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="perfetto holds the timeline only"):
        dlrm.export("perfetto", tmp_path / "x", table="layers")
    with pytest.raises(UsageError, match="no report 'htm'; did you mean 'html'"):
        dlrm.report("htm")


def test_charts_draw_what_the_tables_say(dlrm: perfscope.Run, gloo: perfscope.Run) -> None:
    ax = dlrm.plot.breakdown()
    widths = sum(bar.get_width() for bars in ax.containers for bar in bars)
    assert widths == pytest.approx(sum(dlrm.ranks["traced_step_ns"]) / 1e6)
    assert ax.get_xlabel() == "time per step (ms)"
    assert "ms" in dlrm.plot.collectives().get_xlabel()
    layers = gloo.plot.layers(top=2)
    assert len(layers.get_yticklabels()) == 2
    given = dlrm.plot.steps()
    assert dlrm.plot.steps(given) is given
    factors = gloo.plot.efficiency()
    assert [label.get_text() for label in factors.get_yticklabels()][:2] == [
        "Parallel efficiency",
        "Load balance",
    ]
    with pytest.raises(PerfscopeError, match="no hardware counter was recorded"):
        dlrm.plot.counters("CPUs busy")


def test_a_notebook_shows_no_name_as_markup(tmp_path: Path) -> None:
    run = perfscope.open(small_run(tmp_path / "run", name="<script>alert(1)</script>"))
    html = run._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert run.verdict is None or run.verdict.text.title


def test_no_name_of_a_trace_is_markup_in_a_notebook(tmp_path: Path) -> None:
    """Layers, process groups and hosts are in what-ifs and findings."""
    hostile = r"<img src=x onerror=alert(1)>$\frac$" + "\u202e&amp;"
    run = SyntheticRun(tmp_path / "run", name=hostile, expected_ranks=2, attached_ranks=2)
    for rank in range(2):
        run.rank(rank, world_size=2, host=hostile)
        spans = [
            span(0, (4 + 3 * rank) * MS, "compute", layer=hostile),
            comm((4 + 3 * rank) * MS, (5 - 3 * rank) * MS, 0, group=hostile),
        ]
        run.window(rank, spans, [(0, 0, 10 * MS)])
        run.steps(rank, [10 * MS] * 30)
    opened = perfscope.open(tmp_path / "run")
    html = opened._repr_html_()
    assert "What would help" in html and len(opened.findings) > 0
    assert "<img" not in html and "\u202e" not in html and "&lt;img" in html
    opened.plot.collectives().figure.canvas.draw()


def test_a_frame_of_the_timeline_can_be_selected_sorted_and_searched(gloo: perfscope.Run) -> None:
    frame = gloo.frame("timeline", ranks=[1], columns=["rank", "name", "layer", "dur_ns"])
    assert frame.columns.tolist() == ["rank", "name", "layer", "dur_ns"] and set(frame["rank"]) == {1}
    assert frame["name"].dtype == pd.ArrowDtype(pa.string())
    assert frame.sort_values("name")["name"].iloc[0] == min(frame["name"])
    assert frame["name"].str.contains("convolution").any() and frame["layer"].isna().any()
    with pytest.raises(UsageError, match="select from the timeline, not from layers"):
        gloo.frame("layers", columns=["layer"])


def test_every_frame_has_arrow_types(dlrm: perfscope.Run) -> None:
    for name in TABLES:
        for column, dtype in dlrm.frame(name).dtypes.items():
            assert isinstance(dtype, pd.ArrowDtype), (name, column)


def test_a_given_executor_reads_the_traces(gloo: perfscope.Run, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        run = perfscope.load_traces(TRACES / "cpu_gloo_2ranks", output=tmp_path / "run", executor=pool)
    assert run.table("ranks").equals(gloo.table("ranks"))
    assert run.path == (tmp_path / "run").resolve()


def test_imported_traces_without_an_output_leave_nothing() -> None:
    run = perfscope.load_traces(TRACES / "cpu_gloo_2ranks")
    folder = run.path
    assert folder.is_dir()
    del run
    assert not folder.exists()


def test_importing_perfscope_loads_neither_arrow_nor_pandas() -> None:
    code = "import sys, perfscope; print(*{'numpy', 'pyarrow', 'pandas', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        perfscope.opne  # noqa: B018


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """The processes that read traces do not run it again."""
    script = tmp_path / "script.py"
    traces = str(TRACES / "cpu_gloo_2ranks")
    script.write_text(f"import perfscope\nprint(perfscope.load_traces({traces!r}).table('ranks').num_rows)\n")
    for command, code in (([str(script)], None), (["-"], script.read_text())):
        done = subprocess.run(
            [sys.executable, *command], check=False, input=code, capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == ("2\n", "")


def test_tables_of_a_run_need_no_pandas(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class NotInstalled:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('pandas', 'matplotlib'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        "import perfscope\nfrom perfscope.errors import PerfscopeError\n"
        f"run = perfscope.open({str(small_run(tmp_path / 'run'))!r})\n"
        "assert run.table('ranks').num_rows == 2\n"
        "for ask in (lambda: run.ranks, run.plot.steps):\n"
        "    try: ask()\n"
        "    except PerfscopeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "pandas is not installed: pip install 'perfscope-hpc[notebook]'",
        "matplotlib is not installed: pip install 'perfscope-hpc[notebook]'",
    ]


def test_calls_of_the_timeline_have_layer_and_axis(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", name="calls", expected_ranks=2, attached_ranks=2)
    for rank in range(2):
        run.rank(rank, world_size=2)
        spans = [span(0, 4 * MS, "compute"), comm(4 * MS, 2 * MS, 0)]
        run.window(rank, spans, [(0, 0, 10 * MS)])
    opened = perfscope.open(tmp_path / "run")
    calls = opened.timeline(columns=["kind", "group", "axis"]).to_pylist()
    assert all(row["group"] and row["axis"] for row in calls if row["kind"] == "comm")
