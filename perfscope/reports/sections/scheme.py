"""Section "Scheme" of a bench run: what was trained how, and its bytes as predicted, recorded and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfscope import units
from perfscope.analysis.bench import BenchResult, CacheLevelUse, CallCount, LinkBytes
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.links import WHERE
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, FactList, Note, Section, Table, Unit, Value
from perfscope.rundir.records import RunRecord
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.caches import CacheLevel

MOST_CALLS = 40


def scheme_section(analysis: RunAnalysis) -> Section | None:
    """None for runs that `perfscope bench` did not make."""
    bench = analysis.bench
    if bench is None:
        return None
    blocks: list[Block] = [
        FactList(
            id="scheme-facts",
            title="What was trained how",
            pairs=(
                *_facts(bench, analysis.run.scheme or SchemeRecord()),
                *_cluster_facts(analysis.run.options.cluster),
            ),
        )
    ]
    if bench.links:
        blocks.append(_links_table(bench))
    if bench.calls:
        blocks.append(_calls_table(bench))
    else:
        blocks.append(Note(text="This scheme sends nothing."))
    if bench.caches:
        blocks.append(_caches_table(bench.caches))
    return Section(id="scheme", title="Scheme", lead=_lead(bench), blocks=tuple(blocks))


def scheme_words(run: RunRecord) -> str:
    """The scheme in one sentence: more use above the verdict than a rank's configuration."""
    return visible(run.scheme.summary if run.scheme is not None else "", 300)


def _lead(bench: BenchResult) -> str:
    if bench.samples_per_s is None:
        return f"{visible(bench.scheme)} on {visible(bench.model)} recorded no step."
    rate = units.three_digits(bench.samples_per_s)
    text = f"{visible(bench.scheme)} on {visible(bench.model)}: {rate} samples/s"
    if bench.first_loss is not None and bench.last_loss is not None:
        text += f"; loss {bench.first_loss:.3f} → {bench.last_loss:.3f} in {bench.num_steps} steps"
    if bench.held_out_loss is not None:
        text += f", {bench.held_out_loss:.3f} on samples it never saw"
    return f"{text}."


def _facts(bench: BenchResult, scheme: SchemeRecord) -> Iterator[tuple[str, str]]:
    yield "Scheme", visible(bench.scheme)
    if scheme.summary:
        yield "In words", visible(scheme.summary, 300)
    if scheme.axes is not None:
        yield "Kind", visible(", ".join(scheme.axes.values()), 300)
    yield "Mesh", bench.mesh or "1 rank"
    yield "Model", f"{visible(bench.model)}, {_count(scheme.num_params)} parameters"
    if scheme.input_shape is not None:
        yield "Input", visible("×".join(map(str, scheme.input_shape)))
    yield "Batch", f"{bench.batch:,} samples per step, {bench.effective_batch:,} behind one update"
    if (rate := scheme.learning_rate) is not None:
        yield "Learning rate", visible(f"{rate.value} (rule: {rate.rule})")
    equal = "the same weights as serial training" if scheme.equals_serial else scheme.criterion
    yield "Result", visible(equal or "differs from serial training", 300)
    if bench.peak_rss_bytes:
        yield "Memory", f"{units.format_bytes(bench.peak_rss_bytes)} at most per rank (peak resident set)"
    for key, value in bench.details.items():
        if not str(key).startswith("own_"):  # of one rank only
            yield visible(_words(key).capitalize()), visible(_short(value), 600)


def _cluster_facts(cluster: str | None) -> Iterator[tuple[str, str]]:
    if cluster:
        yield "Cluster", f"{visible(cluster)}, emulated: links are limited, all ranks compute on one machine"


def _short(value: object, between: str = ", ") -> str:
    """A value as text; of a list of records ``rank 0, blocks conv1 relu1; rank 1, blocks fc2``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_short(item, ' ')}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        records = any(isinstance(item, Mapping) for item in value)
        return ("; " if records else between).join(map(_short, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(key: object) -> str:
    return str(key).removeprefix("num_").replace("_", " ")


def _count(value: int | None) -> str:
    return units.MISSING if value is None else units.format_count(value)


def _links_table(bench: BenchResult) -> Table:
    return Table(
        id="scheme-links",
        title="Bytes per step, all ranks together",
        columns=(
            Column(key="link", title="Link", primary=True),
            Column(
                key="predicted",
                title="Predicted",
                unit=Unit.BYTES,
                hint="by the scheme's formulas",
                primary=True,
            ),
            Column(key="recorded", title="Recorded", unit=Unit.BYTES, hint="of the calls made", primary=True),
            Column(
                key="predicted_wire",
                title="Predicted on the wire",
                unit=Unit.BYTES,
                hint="with what this backend adds",
            ),
            Column(key="wire", title="On the wire", unit=Unit.BYTES, hint="interface counters", primary=True),
            Column(key="reason", title="Note"),
        ),
        rows=tuple(_link_row(link) for link in bench.links),
        caption="Predicted and recorded count what the algorithm must move (bytes_algorithmic). The wire's "
        "counters hold headers and whatever else used the link, too.",
    )


def _link_row(link: LinkBytes) -> tuple[Value, ...]:
    return (
        f"{visible(link.link_class)}: {WHERE[link.link_class]}"
        if link.link_class in WHERE
        else visible(link.link_class),
        round(link.predicted),
        None if link.recorded is None else round(link.recorded),
        round(link.predicted_wire),
        None if link.wire is None else round(link.wire),
        visible(link.reason) or None,
    )


_LEVELS = {
    CacheLevel.PROCESS: "memory of the rank",
    CacheLevel.NODE: "shared memory of the host",
    CacheLevel.STORAGE: "storage",
}


def _caches_table(caches: Sequence[CacheLevelUse]) -> Table:
    return Table(
        id="scheme-caches",
        title="Where samples came from, all ranks together",
        columns=(
            Column(key="level", title="Level", primary=True),
            Column(key="samples", title="Samples", unit=Unit.COUNT, primary=True),
            Column(key="share", title="Share of all", unit=Unit.RATIO, primary=True),
            Column(
                key="bytes",
                title="Bytes",
                unit=Unit.BYTES,
                hint="of decoded samples; from storage, of files as they are stored",
                primary=True,
            ),
            Column(
                key="capacity",
                title="Capacity",
                unit=Unit.BYTES,
                hint="of one rank or of one host",
                primary=True,
            ),
        ),
        rows=tuple(
            (_LEVELS[use.level], use.samples, use.share, use.bytes, use.capacity_bytes) for use in caches
        ),
        caption="A level is asked for what the levels above it do not have. What comes from storage is "
        "decoded and kept in both levels of memory as long as they have space.",
    )


def _calls_table(bench: BenchResult) -> Table:
    calls = bench.calls[:MOST_CALLS]
    return Table(
        id="scheme-calls",
        title="Calls over the whole run, all ranks together",
        columns=(
            Column(key="collective", title="Call", primary=True),
            Column(key="what", title="What", primary=True),
            Column(key="axis", title="Axis"),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT),
            Column(key="bytes", title="Size", unit=Unit.BYTES, hint="S of one call", primary=True),
            Column(key="predicted", title="Predicted", unit=Unit.COUNT, primary=True),
            Column(key="recorded", title="Made", unit=Unit.COUNT, primary=True),
        ),
        rows=tuple(_call_row(call) for call in calls),
        caption=""
        if len(calls) == len(bench.calls)
        else f"The {MOST_CALLS} largest of {len(bench.calls):,} kinds.",
    )


def _call_row(call: CallCount) -> tuple[Value, ...]:
    return (
        visible(call.collective),
        visible(call.what) or None,
        visible(call.axis),
        call.num_ranks,
        call.bytes,
        call.predicted,
        call.recorded,
    )
