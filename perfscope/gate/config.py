"""Where a check's settings come from: perfscope.toml or pyproject.toml, then the command line.

Whatever is wrong is one line that names the file, the key, and what would be right. docs/ci.md lists every
key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from perfscope.errors import UsageError
from perfscope.gate.metrics import DECIDES, METRICS, Direction, GateMetric, Severity
from perfscope.gate.sequential import fewest_pairs
from perfscope.gate.settings import Settings
from perfscope.settings import converted, given, meant, one_line, read_toml, shown, unknown_key
from perfscope.units import parse_ratio

OWN_FILE, PROJECT_FILE = "perfscope.toml", "pyproject.toml"
SHORT, LONG = "check", "tool.perfscope.check"
LARGEST_THRESHOLD = 10.0
Comparable = Literal[
    "cpu", "num_cpus", "gpus", "num_hosts", "torch", "perfscope", "world_size", "batch", "scheme"
]


class Name(str):
    """What a benchmark is called."""

    @classmethod
    def parse(cls, value: object) -> Name:
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > 200:
            raise ValueError("a name of 1 to 200 printable characters")
        return cls(value)


class Share(float):
    """A share of a figure."""

    @classmethod
    def parse(cls, value: object) -> Share:
        """A share from "5%", "5 %", 0.05 or "0.05".

        A bare number must be below 1: who writes 5 means 5 %, not five times as long, and a gate that took it
        at its word would never fail again.

        Raises:
            ValueError: what is wanted instead.
        """
        bare = _number(value)
        if bare is not None and 1 <= bare <= 100 * LARGEST_THRESHOLD:
            number_text = str(value).strip()
            raise ValueError(f'a share: "{number_text}%" for {number_text} percent, or a number below 1')
        share = bare if bare is not None else _per_cent(value)
        if share is None or not 0 < share <= LARGEST_THRESHOLD:
            most = f"{100 * LARGEST_THRESHOLD:.0f} %"
            raise ValueError(f'a share such as "5%" or 0.05, above 0 and at most {most}')
        return cls(share)


def _number(value: object) -> float | None:
    """A number as it is or in text, without a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _per_cent(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_ratio(value)
    except ValueError:
        stripped = value.strip()  # no number, or more than 100 %, which a threshold may be
    more = _number(stripped[:-1]) if stripped.endswith("%") else None
    return None if more is None else more / 100


_EXAMPLE = 'a table such as { severity = "error", threshold = "5%" }'


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTable:
    """[check.metrics.ID]: what of the metric is changed."""

    direction: Direction | None = None
    threshold: Share | None = None
    severity: Severity | None = None

    def applied(self, metric: GateMetric) -> GateMetric:
        return replace(
            metric,
            better=self.direction or metric.better,
            threshold=float(self.threshold or metric.threshold),
            severity=self.severity or metric.severity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTable:
    """[check]: what a project says of `gate.settings.Settings`, where each is explained.

    `threshold` is that of the metric that decides.
    """

    name: Name | None = None
    pairs: Annotated[int, Meta(ge=1, le=200)] | None = None
    most_pairs: Annotated[int, Meta(ge=1, le=400)] | None = None
    threshold: Share | None = None
    alpha: Annotated[float, Meta(gt=0, le=0.5)] | None = None
    fewest: Annotated[int, Meta(ge=2, le=1000)] | None = None
    fewest_steps: Annotated[int, Meta(ge=2, le=1_000_000)] | None = None
    repeats: Annotated[int, Meta(ge=0, le=1000)] | None = None
    early_stop: bool | None = None
    pin_heap: bool | None = None
    allow: tuple[Comparable, ...] | None = None
    baseline: Path | None = None
    history: Path | None = None
    metrics: dict[str, Annotated[MetricTable, Meta(description=_EXAMPLE)]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """perfscope.toml."""

    check: CheckTable | None = None
    tool: dict[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTable:
    """[tool.perfscope]."""

    check: CheckTable | None = None


def load_settings(folder: Path, file: Path | None = None) -> Settings:
    """The settings of the project that `folder` is in.

    The nearest of `folder` and the folders above it whose perfscope.toml has [check] (or
    [tool.perfscope.check]), or whose pyproject.toml has [tool.perfscope.check], counts alone; perfscope.toml
    goes before its neighbor. Nothing above the repository's root is looked at. Paths in the file are
    relative to it.

    Args:
        file: read this one and no other.

    Returns:
        The defaults where no file says anything.

    Raises:
        UsageError: a file cannot be read, or says something that cannot be; one line with file and key.
    """
    if file is not None:
        table = _table_of(file, is_required=True)
        return _settings(file, *table) if table else Settings()
    for candidate in _candidates(folder):
        table = _table_of(candidate, is_required=False)
        if table is not None:
            return _settings(candidate, *table)
    return Settings()


def with_overrides(
    settings: Settings,
    *,
    pairs: int | None = None,
    threshold: float | str | None = None,
    alpha: float | None = None,
    name: str | None = None,
    metric_options: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> Settings:
    """`settings` with what the command line says on top.

    Args:
        threshold: of the metric that decides, "5%" or a share.
        metric_options: words ID=SEVERITY, ID=THRESHOLD or ID=SEVERITY:THRESHOLD; the last of a metric counts.
        allow: fields of the fingerprint, beside those that the settings allow.

    Raises:
        UsageError: one line with the option and what it may be.
    """
    options = {
        "pairs": pairs,
        "threshold": threshold,
        "alpha": alpha,
        "name": name,
        "allow": list(allow) or None,
    }
    options = {key: value for key, value in options.items() if value is not None}
    asked = converted(options, CheckTable, prefix="--")
    metrics = dict(settings.metrics)
    if asked.threshold is not None:
        metrics[DECIDES] = replace(metrics[DECIDES], threshold=float(asked.threshold))
    for word in metric_options:
        id_, changed = _metric_word(word)
        if threshold is not None and id_ == DECIDES and changed.threshold is not None:
            raise UsageError(
                f"--threshold and --metric {word} both set the threshold of {DECIDES}; leave one out"
            )
        metrics[id_] = changed.applied(metrics[id_])
    made = replace(
        settings,
        pairs=asked.pairs or settings.pairs,
        alpha=asked.alpha or settings.alpha,
        name=str(asked.name) if asked.name else settings.name,
        allow=tuple(dict.fromkeys((*settings.allow, *(asked.allow or ())))),
        metrics=metrics,
    )
    if pairs is not None or alpha is not None:
        _require_reachable("--pairs" if pairs is not None else "--alpha", made)
    if metric_options:
        _require_deciding("--metric", made)
    return made


def _candidates(folder: Path) -> Iterator[Path]:
    here = folder.resolve()
    for folder_tried in (here, *here.parents):
        yield folder_tried / OWN_FILE
        yield folder_tried / PROJECT_FILE
        try:
            if (folder_tried / ".git").exists():  # a file in worktrees and submodules
                return
        except OSError:
            return  # a folder that may not be searched: nothing above it is this project's


def _table_of(file: Path, *, is_required: bool) -> tuple[str, CheckTable] | None:
    """The file's table for `perfscope check` with its dotted name; None where it has none."""
    try:
        document = read_toml(file)
    except UsageError as error:
        absent = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        if absent and not is_required:
            return None
        raise
    # Everything in perfscope.toml is ours, so nothing in it can belong to another tool.
    own_file = converted(document, OwnFile, file=file) if file.name != PROJECT_FILE else OwnFile()
    tool = document.get("tool")
    inside = tool.get("perfscope", {}) if isinstance(tool, Mapping) else {}
    long = converted(inside, ToolTable, file=file, prefix="tool.perfscope.")
    if own_file.check is not None and long.check is not None:
        raise UsageError(f"{one_line(file)}: has both [{SHORT}] and [{LONG}]; keep one of them")
    for name, table in ((SHORT, own_file.check), (LONG, long.check)):
        if table is not None:
            return name, table
    if is_required:
        wanted = f"[{LONG}]" if file.name == PROJECT_FILE else f"[{SHORT}] or [{LONG}]"
        raise UsageError(f"{one_line(file)}: has no table {wanted}")
    return None


def _settings(file: Path, prefix: str, table: CheckTable) -> Settings:
    file_text = one_line(file)
    metrics = dict(METRICS)
    if table.threshold is not None:
        metrics[DECIDES] = replace(metrics[DECIDES], threshold=float(table.threshold))
    for id_, changed in (table.metrics or {}).items():
        if id_ not in METRICS:
            raise UsageError(f"{file_text}: {prefix}.metrics: {unknown_key(id_, METRICS)}")
        if id_ == DECIDES and changed.threshold is not None and table.threshold is not None:
            raise UsageError(
                f"{file_text}: {prefix}.threshold and {prefix}.metrics.{DECIDES}.threshold are the same;"
                " keep one of them"
            )
        metrics[id_] = changed.applied(metrics[id_])
    values = {**given(table), "metrics": metrics}
    values.pop("threshold", None)
    for key in ("baseline", "history"):
        if key in values:
            values[key] = file.absolute().parent / values[key]
    settings = Settings(**values, source=file)
    if settings.pairs < settings.fewest:
        wanted = f"must be at least {prefix}.fewest, which is {settings.fewest}"
        raise UsageError(
            f"{file_text}: {prefix}.pairs: {wanted}, or nothing is ever judged; not {settings.pairs}"
        )
    if settings.most_pairs is not None and settings.most_pairs < settings.pairs:
        raise UsageError(
            f"{file_text}: {prefix}.most_pairs: must be at least {prefix}.pairs, which is {settings.pairs};"
            f" not {settings.most_pairs}"
        )
    _require_reachable(f"{file_text}: {prefix}.pairs", settings)
    _require_deciding(f"{file_text}: {prefix}.metrics", settings)
    return settings


def _require_reachable(where: str, settings: Settings) -> None:
    """Refuse a check that could not fail: n pairs that all got worse have p = 2^-n, and less there is not.

    Fewer pairs than `fewest` pass here: asked for once, by hand, they are inconclusive, and said to be.
    """
    smallest = 0.5**settings.pairs
    if settings.pairs >= settings.fewest and smallest >= settings.alpha:
        needed = fewest_pairs(settings.alpha)
        raise UsageError(
            f"{where}: {settings.pairs} pairs cannot prove anything at alpha {settings.alpha:g} (their"
            f" smallest p is {smallest:.2g}); use {needed} pairs or more, or a larger alpha"
        )


def _require_deciding(where: str, settings: Settings) -> None:
    if not any(metric.severity == "error" for metric in settings.metrics.values()):
        raise UsageError(
            f'{where}: no metric has severity "error", so this check could never fail;'
            f" give it to one, such as {DECIDES}"
        )


def _metric_word(word: str) -> tuple[str, MetricTable]:
    """`peak_memory=error:15%` -> its id and what of `GateMetric` it changes."""
    where = f"--metric {word if word.isprintable() else shown(word)}"
    id_, equals, values_text = word.partition("=")
    if not equals:
        raise UsageError(
            f"{where}: must be ID=SEVERITY, ID=THRESHOLD or ID=SEVERITY:THRESHOLD, as in {DECIDES}=8%"
        )
    if id_ not in METRICS:
        raise UsageError(
            f"{where}: there is no such metric{meant(id_, METRICS)}; there are {', '.join(METRICS)}"
        )
    first, colon, second = values_text.partition(":")
    values = {"severity": first, "threshold": second}
    if not colon:
        is_threshold = any(character.isdigit() for character in first)
        values = {"threshold" if is_threshold else "severity": first}
    return id_, converted(values, MetricTable, file=where)
