"""Figures of a report that must agree: over the traces of the repository, and made to disagree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analysis.critical.results import shares_by_kind
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.self_checks import _CHECKS, with_self_checks
from perfscope.analysis.whole_run.results import WholeRun
from perfscope.ingest.importing import import_traces
from perfscope.messages.findings.self_checks import CHECKS
from perfscope.reports.build import build_report
from perfscope.reports.text import render_text
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.self_checks import BESIDE_THE_VERDICT, Check

DATA = Path(__file__).parents[2] / "data"
TRACES = sorted(path for path in (DATA / "traces").iterdir() if path.is_dir())
OTHERS = sorted(path for path in (DATA / "frameworks").glob("*.gz"))
_Change = Callable[[RunAnalysis], RunAnalysis]


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunAnalysis]:
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for path in (*TRACES, *OTHERS):
        import_traces([path], folder / path.name)
        found[path.name] = analyze_run(RunReader(folder / path.name))
    return found


@pytest.mark.parametrize("path", [*TRACES, *OTHERS], ids=lambda path: path.name)
def test_no_figure_of_a_trace_in_the_repository_contradicts_another(
    analyses: dict[str, RunAnalysis], path: Path
) -> None:
    checks = analyses[path.name].self_checks
    assert [check for check in checks if not check.ok] == []
    assert {Check.BREAKDOWN_SUM, Check.GAIN_WITHIN_STEP} <= {check.check for check in checks}


def test_every_check_has_words_and_a_function() -> None:
    assert set(CHECKS) == set(_CHECKS) == set(Check)
    assert set(Check) > BESIDE_THE_VERDICT


def test_the_path_of_a_host_that_runs_ahead_is_the_busy_device(analyses: dict[str, RunAnalysis]) -> None:
    analysis = analyses["vllm_piecewise"]
    shares = {share.key: share.ratio for share in shares_by_kind(analysis.critical_paths)}
    device = analysis.ranks[0].device_ns
    assert device is not None
    busy = 1 - device.idle / device.span
    assert busy == pytest.approx(0.998, abs=0.001)
    assert shares["compute"] + shares.get("copy", 0) == pytest.approx(busy, abs=0.01)


def test_the_path_through_blocking_calls_is_as_busy_as_the_device(analyses: dict[str, RunAnalysis]) -> None:
    analysis = analyses["mi300_ddp_resnet18"]
    shares = {share.key: share.ratio for share in shares_by_kind(analysis.critical_paths)}
    device = analysis.ranks[0].device_ns
    assert device is not None
    assert shares["compute"] == pytest.approx(device.compute / device.span, abs=0.02)


# -- figures made to disagree ---------------------------------------------------------------------------


def first_rank(change: Callable[[Any], Any]) -> _Change:
    return lambda analysis: replace(analysis, ranks=(change(analysis.ranks[0]), *analysis.ranks[1:]))


def part(name: str, **values: int) -> _Change:
    """Values added to fields of a part of the first rank's results."""

    def changed(rank: Any) -> Any:
        before = getattr(rank, name)
        more = {field: getattr(before, field) + value for field, value in values.items()}
        return replace(rank, **{name: replace(before, **more)})

    return first_rank(changed)


def bound_by_gaps(analysis: RunAnalysis) -> RunAnalysis:
    """The first finding of gaps saves the whole step."""
    gap = next(finding for finding in analysis.findings if finding.id.value == "host_blocked")
    return replace(analysis, findings=(replace(gap, gain_ratio=1.0), *analysis.findings[1:]))


def absent(analysis: RunAnalysis) -> RunAnalysis:
    gap = missing_figure(Figure.COLLECTIVES, Cause.NO_COMMUNICATION)
    return replace(analysis, missing=(*analysis.missing, gap))


def larger_gain(analysis: RunAnalysis) -> RunAnalysis:
    first, *others = analysis.findings
    return replace(analysis, findings=(replace(first, gain_ratio=3.19), *others))


WRONG = {
    Check.BREAKDOWN_SUM: ("a100_8of16", part("breakdown_ns", compute=1)),
    Check.DEVICE_SUM: ("a100_8of16", part("device_ns", span=5)),
    Check.DEVICE_IDLE_SUM: ("a100_8of16", first_rank(lambda rank: replace(rank, device_idle=()))),
    Check.DEVICE_IDLE_STEP: (
        "vllm_piecewise",
        part("breakdown_ns", idle=70_000_000, compute=-70_000_000),
    ),
    Check.COMM_BY_LAYER_SUM: ("cpu_gloo_2ranks", part("communication", exposed_ns=7)),
    Check.COMM_BY_AXIS_SUM: ("cpu_gloo_2ranks", part("communication", exposed_ns=7)),
    Check.COMM_OF_STEP: ("cpu_gloo_2ranks", part("communication", exposed_ns=7)),
    Check.COMM_PRESENT: ("cpu_gloo_2ranks", absent),
    Check.WAIT_WITHIN_CALLS: (
        "cpu_gloo_2ranks",
        lambda analysis: replace(analysis, waiting_ns=(analysis.in_calls_ns or 0) + 1),
    ),
    Check.PATH_IDLE: (
        "mi300_ddp_resnet18",
        part("breakdown_ns", idle=-3_000_000_000, compute=3_000_000_000),
    ),
    Check.PATH_VERDICT: (
        "vllm_piecewise",
        lambda analysis: replace(
            analysis,
            findings=(replace(analysis.findings[0], id=FindingKind.IDLE_BOUND, gain_ratio=0.493),),
        ),
    ),
    Check.GAIN_WITHIN_STEP: ("a100_8of16", larger_gain),
    Check.GAIN_WITHIN_CAUSE: ("a100_8of16", bound_by_gaps),
    Check.WHAT_IF_STEP: (
        "cpu_gloo_2ranks",
        lambda analysis: replace(
            analysis,
            what_ifs=(replace(analysis.what_ifs[0], step_ns=analysis.what_ifs[0].step_ns + 100),),
        ),
    ),
}


@pytest.mark.parametrize("of_training", [False, True])
def test_a_saving_in_time_that_is_longer_than_its_step_is_found(
    analyses: dict[str, RunAnalysis], of_training: bool
) -> None:
    analysis = analyses["a100_8of16"]
    first, *others = analysis.findings
    assert analysis.step_ns is not None
    median = analysis.step_ns.median
    whole = WholeRun(
        wall_ns=30 * median,
        parts=(),
        ranks=(),
        num_steps=10,
        training_ns=20 * median,
        usual_step_ns=median,
        samples_per_s=None,
        training_samples_per_s=None,
        long_steps=(),
    )
    for gain_ns, is_within in ((median, True), (round(1.5 * median), of_training), (3 * median, False)):
        gained = replace(first, gain_ns=gain_ns, gain_ratio=0.5, of_training=of_training)
        changed = with_self_checks(replace(analysis, whole_run=whole, findings=(gained, *others)))
        (check,) = (check for check in changed.self_checks if check.check is Check.GAIN_WITHIN_STEP)
        assert check.ok is is_within


@pytest.mark.parametrize("check", WRONG, ids=str)
def test_a_figure_that_contradicts_another_is_reported_and_withholds_the_verdict(
    analyses: dict[str, RunAnalysis], check: Check
) -> None:
    name, change = WRONG[check]
    wrong = with_self_checks(change(analyses[name]))
    failed = {found.check: found for found in wrong.self_checks if not found.ok}
    assert check in failed and failed[check].failures
    (finding,) = (finding for finding in wrong.findings if finding.id == "self_check_failed")
    assert CHECKS[check] in finding.text.title and finding.text.title.startswith("Bug in perfscope: ")
    withheld = any(found not in BESIDE_THE_VERDICT for found in failed)
    assert (wrong.findings[0] is finding) == withheld
    text = " ".join(render_text(build_report(wrong, None)).split())
    assert "Bug in perfscope: " in text
