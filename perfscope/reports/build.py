"""Turns analysis results into the one Report that every renderer draws."""

from __future__ import annotations

from msgspec import structs

from perfscope import __version__, units
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.missing_reasons import why_cut_short
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.timeline_extract import TimelineExtract
from perfscope.analysis.usual_step import on_usual_step
from perfscope.messages.advice import training_advice
from perfscope.messages.files import of_what_is_left
from perfscope.messages.lists import counted
from perfscope.reports.context import context_of
from perfscope.reports.display import visible
from perfscope.reports.document import build_document
from perfscope.reports.model import KeyFigure, Note, Report, Section, Table, Unit, Verdict, format_value
from perfscope.reports.sections.collectives import collectives_section
from perfscope.reports.sections.communication import communication_section
from perfscope.reports.sections.counters import counters_section
from perfscope.reports.sections.critical_path import critical_path_section
from perfscope.reports.sections.devices import device_section
from perfscope.reports.sections.efficiency import efficiency_figures, efficiency_section
from perfscope.reports.sections.execution import execution_section, execution_verdict
from perfscope.reports.sections.experts import experts_section
from perfscope.reports.sections.findings import LONGEST_SENTENCE, findings_section, saving_sentence, with_card
from perfscope.reports.sections.hangs import hang_notices, hangs_section, with_hang
from perfscope.reports.sections.inspector import inspector_section, inspector_verdict
from perfscope.reports.sections.kernels import kernels_section
from perfscope.reports.sections.layer_names import layer_names
from perfscope.reports.sections.layers import layers_section
from perfscope.reports.sections.learning import learning_section
from perfscope.reports.sections.loading import loading_section
from perfscope.reports.sections.machine import machine_figures, machine_notices, machine_section
from perfscope.reports.sections.memory import growth_notices, memory_section
from perfscope.reports.sections.phases import phases_section
from perfscope.reports.sections.pipeline import pipeline_section
from perfscope.reports.sections.progress import progress_section, progress_verdict
from perfscope.reports.sections.roofline import roofline_section
from perfscope.reports.sections.run import (
    command_text,
    missing_section,
    provenance_section,
    run_section,
    trace_notices,
)
from perfscope.reports.sections.scheme import scheme_section, scheme_words
from perfscope.reports.sections.steps import (
    BREAKDOWN_PARTS,
    breakdown_section,
    mean_shares,
    overview_bar,
    scope_of,
    series_section,
)
from perfscope.reports.sections.timeline import timeline_section
from perfscope.reports.sections.traffic import stacks_section, traffic_section
from perfscope.reports.sections.trend import trend_charts
from perfscope.reports.sections.waits import waits_section
from perfscope.reports.sections.what_ifs import what_ifs_section
from perfscope.reports.sections.whole_run import whole_run_section

NOTABLE_GAIN = 0.05  # below this share of the step a finding is not worth a caution color


def build_report(analysis: RunAnalysis, timeline: TimelineExtract | None) -> Report:
    """The report of one run.

    Args:
        analysis: the figures.
        timeline: spans of the traced windows; None where nothing was traced.
    """
    usual = on_usual_step(analysis)
    findings = findings_section(analysis)
    verdict = with_card(build_verdict(usual), findings)
    sections: list[Section | None] = [
        progress_section(analysis),
        inspector_section(analysis),
        findings,
        hangs_section(analysis),
        whole_run_section(analysis),
        phases_section(analysis),
        loading_section(analysis),
        scheme_section(analysis),
        learning_section(analysis),
        breakdown_section(usual),
        what_ifs_section(analysis),
        efficiency_section(analysis),
        timeline_section(timeline, analysis.machine, analysis.critical_paths),
        critical_path_section(analysis.critical_paths, layer_names(analysis.layers)),
        pipeline_section(usual),
        experts_section(usual),
        communication_section(usual),
        kernels_section(analysis),
        execution_section(analysis),
        layers_section(usual),
        roofline_section(analysis),
        collectives_section(analysis),
        waits_section(usual),
        device_section(analysis),
        series_section(analysis),
        memory_section(analysis),
        machine_section(analysis),
        counters_section(analysis),
        traffic_section(analysis),
        stacks_section(analysis),
        missing_section(analysis),
        provenance_section(analysis),
        run_section(analysis),
    ]
    return Report(
        title=_title(analysis),
        subtitle=command_text(analysis.run) if analysis.bench is None else scheme_words(analysis.run),
        verdict=with_hang(analysis, _of_whole_trace(analysis, verdict)),
        overview=overview_bar(usual),
        trend=trend_charts(analysis),
        figures=build_figures(usual),
        sections=tuple(_without_empty_columns(section) for section in sections if section is not None),
        document=build_document(analysis),
        version=__version__,
        context=context_of(analysis),
        notices=_notices(analysis),
    )


def _notices(analysis: RunAnalysis) -> tuple[Note, ...]:
    """What must be known before any figure is read."""
    of_parts = (trace_notices, hang_notices, machine_notices, growth_notices)
    return tuple(note for notices in of_parts for note in notices(analysis))


def _title(analysis: RunAnalysis) -> str:
    """The run's name; of a bench run also what was trained where."""
    name = visible(analysis.run.name or "unnamed run")
    bench = analysis.bench
    if bench is None:
        return name
    ranks = counted(bench.num_ranks, "rank")
    cluster = analysis.run.options.cluster
    return " · ".join(filter(None, (name, visible(bench.model), ranks, visible(cluster or ""))))


def _without_empty_columns(section: Section) -> Section:
    """A column that is missing in every row says nothing, unless it is one of the main ones."""
    blocks = tuple(block.trimmed() if isinstance(block, Table) else block for block in section.blocks)
    return structs.replace(section, blocks=blocks)


NOTABLE_SLOWDOWN = 0.15  # traced over median step time, above which the report says so


def _of_whole_trace(analysis: RunAnalysis, verdict: Verdict) -> Verdict:
    """Where a trace is cut off, the headline begins with that."""
    if not any(source.ends_early for source in analysis.provenance):
        return verdict
    return structs.replace(verdict, headline=of_what_is_left(verdict.headline), tone="caution")


def build_verdict(analysis: RunAnalysis) -> Verdict:
    """What bounds the step, from the first finding; where nothing was measured, that."""
    shares = mean_shares(analysis)
    if analysis.progress and (analysis.progress[0].is_open or shares is None):
        return progress_verdict(analysis.progress)
    if analysis.communicators and shares is None:
        return inspector_verdict(analysis.communicators)
    if analysis.execution is not None and shares is None:
        return execution_verdict(analysis.execution)
    if analysis.findings:
        first = analysis.findings[0]
        notable = first.gain_ratio is not None and first.gain_ratio >= NOTABLE_GAIN
        return Verdict(
            headline=visible(first.text.title, LONGEST_SENTENCE),
            parts=_where_it_goes(analysis),
            detail=_against_untraced(analysis),
            action=visible(first.text.action, LONGEST_SENTENCE),
            tone="caution" if notable else "plain",
            confidence="" if first.confidence is None else first.confidence.sentence,
            saving=saving_sentence(first),
        )
    if shares is not None:
        largest = max(shares[1].items(), key=lambda item: item[1])
        return Verdict(
            headline=f"No single cause dominates: {units.format_ratio(largest[1], 0)} of the "
            f"{scope_of(analysis).short} is {_part_words(largest[0])}.",
            parts=_where_it_goes(analysis),
            detail=_against_untraced(analysis),
            action="",
            tone="good",
        )
    return _verdict_without_windows(analysis)


def _verdict_without_windows(analysis: RunAnalysis) -> Verdict:
    if analysis.step_ns is not None:
        return Verdict(
            headline=f"A step takes {units.format_ns(analysis.step_ns.median)}; its parts are not known.",
            detail="Only step times were recorded, no window was traced.",
            action="Run again without --no-trace to see the parts of the step.",
            tone="caution",
        )
    return Verdict(
        headline="No step was recorded.",
        detail="The speed of this run is unknown. For the reason, see “Not collected”.",
        action="",
        tone="caution",
    )


def _part_words(key: str) -> str:
    return next(part.title for part in BREAKDOWN_PARTS if part.key == key).lower()


def _where_it_goes(analysis: RunAnalysis) -> str:
    """``The median step of 31 ms is 60 % compute, 25 % exposed communication, 15 % idle.``"""
    shares = mean_shares(analysis)
    if shares is None:
        return ""
    step_ns, parts = shares
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    labels = {key: _part_words(key) for key in parts}
    if _lacks_communication(analysis):
        labels["idle"] += " or communication that is not traced"
    phrases = [f"{units.format_ratio(share)} {labels[key]}" for key, share in ranked if share >= 0.0005]
    return f"The {scope_of(analysis).full} of {units.format_ns(step_ns)} is {', '.join(phrases)}."


def _lacks_communication(analysis: RunAnalysis) -> bool:
    return any("exposed_comm" in rank.unknown for rank in analysis.ranks)


def _against_untraced(analysis: RunAnalysis) -> str:
    """What the shares are of, where the traced steps were much slower than the others; else nothing."""
    ratio = analysis.traced_ratio
    if ratio is None or ratio < 1 + NOTABLE_SLOWDOWN or mean_shares(analysis) is None:
        return ""
    return (
        f"The shares are those of traced steps, which took {units.format_ratio(ratio - 1, 0)} longer "
        f"({_why_slower(analysis.machine)})."
    )


def _why_slower(machine: MachineAnalysis | None) -> str:
    if machine is not None and machine.traced_disturbed:
        return "interference and profiling overhead"
    if machine is not None and (machine.clean or machine.traced_disturbed is False):
        return "profiling overhead; no interference detected"
    return "profiling overhead or interference"


def build_figures(analysis: RunAnalysis) -> tuple[KeyFigure, ...]:
    """The strip at the top: step, throughput, exposed communication, efficiency, ranks, overhead."""
    figures = [*_state_figure(analysis), _step_figure(analysis), _throughput_figure(analysis)]
    figures += [*_tokens_figure(analysis), *_utilization_figure(analysis)]
    shares = mean_shares(analysis)
    if shares is not None:
        exposed = shares[1]["exposed_comm"]
        value, note = units.format_ratio(exposed), f"{units.format_ns(exposed * shares[0])} "
        note = f"of the {scope_of(analysis).short}; {note}not overlapped with compute"
        if _lacks_communication(analysis):
            value, note = "not known", "ranks communicate in untraced threads"
        if analysis.collectives or exposed or len(analysis.ranks) > 1:
            figures.append(
                KeyFigure(id="exposed_comm", title="Exposed communication", value=value, note=note)
            )
    figures += [*efficiency_figures(analysis), _ranks_figure(analysis), *_memory_figures(analysis)]
    figures += [*machine_figures(analysis), _overhead_figure(analysis)]
    return tuple(figures)


def _state_figure(analysis: RunAnalysis) -> list[KeyFigure]:
    """Said first where the run was cut short, not closed, or failed: other figures are of a part of it."""
    cut_short = why_cut_short(analysis.run)
    if cut_short:
        note = visible(cut_short, LONGEST_SENTENCE)
        return [KeyFigure(id="state", title="State of the run", value="incomplete", note=note)]
    ending = analysis.run.exit
    if ending is not None and ending.code:
        why = "the command failed" if ending.signal is None else f"ended by signal {ending.signal}"
        return [KeyFigure(id="state", title="State of the run", value=f"exit code {ending.code}", note=why)]
    if not analysis.run.is_open:
        return []
    note = "still running, or perfscope was killed"
    return [KeyFigure(id="state", title="State of the run", value="not finished", note=note)]


def _step_figure(analysis: RunAnalysis) -> KeyFigure:
    q = analysis.step_ns
    if q is None:
        return KeyFigure(id="step", title="Median step time", value=units.MISSING, note="no step recorded")
    note = f"p10 {units.format_ns(q.p10)} · p90 {units.format_ns(q.p90)}"
    if analysis.uneven_mean_ns is not None:
        note += f" · mean {units.format_ns(analysis.uneven_mean_ns)}"
    return KeyFigure(id="step", title="Median step time", value=units.format_ns(q.median), note=note)


def _throughput_figure(analysis: RunAnalysis) -> KeyFigure:
    rate = analysis.throughput_samples_per_s
    text = format_value(Unit.COUNT if rate is None or rate >= 100 else Unit.NUMBER, rate)
    notes = {
        None: "batch size not known",
        "loader": "batch size from the data loader",
        "program": "samples as reported by the program",
        "derived": training_advice(analysis.advice_key).samples_from,
        "option": "from --samples-per-step",
        "scheme": "by the scheme's batch, slowest rank",
    }
    note = notes.get(analysis.samples_source, visible(analysis.samples_source))
    if text == units.MISSING:
        return KeyFigure(id="throughput", title="Throughput", value=text, note="batch size not known")
    if analysis.uneven_mean_ns is not None:
        note += "; by the mean step, as steps are uneven"
    if analysis.batch_range is not None:
        low, high = analysis.batch_range
        note += f"; batch sizes vary ({low:,} to {high:,} per rank): all samples / time of their steps"
    return KeyFigure(id="throughput", title="Throughput", value=f"{text} samples/s", note=note)


def _tokens_figure(analysis: RunAnalysis) -> list[KeyFigure]:
    """Of models that embed tokens only."""
    rate, per_step = analysis.tokens_per_s, analysis.tokens_per_step
    if rate is None or per_step is None:
        return []
    text = format_value(Unit.COUNT if rate >= 100 else Unit.NUMBER, rate)
    note = f"{format_value(Unit.COUNT, per_step)} tokens per step"
    return [KeyFigure(id="tokens", title="Tokens", value=f"{text} tokens/s", note=note)]


def _utilization_figure(analysis: RunAnalysis) -> list[KeyFigure]:
    """Of models of tokens, and of GPUs; the JSON report has it of every model."""
    entry = analysis.flops_utilization
    if entry is None or (analysis.tokens_per_s is None and entry.device == "cpu"):
        return []
    peak = units.format_si(entry.peak_flops_per_s, "FLOP/s")
    note = f"FLOPs per second, of {peak} per rank in {visible(entry.dtype, 30)}, {visible(entry.peak_source)}"
    title = "HFU" if entry.recomputes else "MFU"
    return [KeyFigure(id="mfu", title=title, value=units.format_ratio(entry.ratio), note=note)]


def _ranks_figure(analysis: RunAnalysis) -> KeyFigure:
    run = analysis.run
    attached = len(analysis.ranks) if run.attached_ranks is None else run.attached_ranks
    expected = run.expected_ranks or run.world_size
    value = f"{attached:,}/{expected:,}" if expected is not None else f"{attached:,}"
    hosts = len({rank.host for rank in analysis.ranks if rank.host})
    note = f"on {counted(hosts, 'host')}" if hosts else ""
    if attached > len(analysis.ranks):
        num = len(analysis.ranks)
        note = f"{counted(num, 'record')} {'is' if num == 1 else 'are'} readable"
    if run.is_imported:
        return KeyFigure(id="ranks", title="Ranks in the traces", value=value, note=note)
    return KeyFigure(id="ranks", title="Ranks profiled", value=value, note=note)


def _memory_figures(analysis: RunAnalysis) -> list[KeyFigure]:
    """Of the rank that held most; of the device where one was used."""
    for name, title, whose in (
        ("peak_device_bytes", "Peak device memory", "allocated by the framework"),
        ("peak_rss_bytes", "Peak memory", "of the process"),
    ):
        held_bytes = {rank.rank: held for rank in analysis.ranks if (held := getattr(rank, name)) is not None}
        if held_bytes:
            most = max(held_bytes, key=lambda rank: held_bytes[rank])
            note = f"{whose}, rank {most} of {len(held_bytes)}" if len(held_bytes) > 1 else whose
            return [
                KeyFigure(id="memory", title=title, value=units.format_bytes(held_bytes[most]), note=note)
            ]
    return []


def _overhead_figure(analysis: RunAnalysis) -> KeyFigure:
    value = units.format_ratio(analysis.overhead_ratio, 2)
    note = "of training time"
    if analysis.overhead_ratio is None:
        imported = analysis.run.is_imported
        note = "not known for imported traces" if imported else "not measured"
    return KeyFigure(id="overhead", title="Profiling overhead", value=value, note=note)
