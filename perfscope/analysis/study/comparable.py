"""Which runs may be compared, and what is wrong with those that may not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from perfscope.analysis.bench import COUNTED
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.study.grouping import BATCH, DTYPE, MACHINE, MODEL, with_name
from perfscope.analysis.study.machines import machine_key
from perfscope.analysis.study.results import REFUSE, WARN, Problem, RunEntry, Severity, StudyRun
from perfscope.messages.comparison import problems as words
from perfscope.messages.missing import cause_text
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import ProblemKind, StudyPart
from perfscope.vocabulary.efficiency import PopFactor
from perfscope.vocabulary.figures import Figure

StudyParts = tuple[StudyPart, ...]
EVERYTHING = (StudyPart.EVERYTHING,)
FIGURES = (StudyPart.SCALING, StudyPart.SCHEMES)
FEW_STEPS = 0.5  # of the most steps of a study's runs: speeds of fewer are noisier by far
MOST = 1.005  # of a share; half a percent beyond 1 is what the replay is off by
_SHARES = tuple(
    pop_factor
    for pop_factor in PopFactor
    if pop_factor not in (PopFactor.COMPUTATION_SCALING, PopFactor.GLOBAL)
)


def usable(runs: Sequence[StudyRun], entries: Sequence[RunEntry]) -> tuple[StudyRun, ...]:
    """Runs whose speed may enter a figure: closed, whole, with a speed, and each run once."""
    twice = set(_second_copies(runs, entries))
    return tuple(
        run
        for run in runs
        if not run.running
        and not _lacks_ranks(run)
        and run.samples_per_s is not None
        and run.label not in twice
    )


def _lacks_ranks(run: StudyRun) -> bool:
    """Of an import it is no loss: people trace one rank of many, and its steps are those of the job."""
    return run.origin != "import" and _unseen(run) > 0


def _unseen(run: StudyRun) -> int:
    return 0 if run.world_size is None else run.world_size - run.num_ranks_seen


def _second_copies(runs: Sequence[StudyRun], entries: Sequence[RunEntry]) -> dict[str, str]:
    """Labels of runs that are in the study already -> that of the copy that counts.

    One run: same start to the nanosecond, name and command. Of its copies the one that tells most counts,
    among equals the one named first.
    """
    given = {entry.name: (at, entry.analysis.run) for at, entry in reversed(list(enumerate(entries)))}
    copies: dict[tuple[object, ...], list[StudyRun]] = defaultdict(list)
    for run in runs:
        _, document = given[run.name]
        start = document.start_unix_ns
        if start is not None and start > 0:
            copies[start, document.name, run.command, run.world_size].append(run)

    def rank(run: StudyRun) -> tuple[bool, bool, bool, bool, bool, int]:
        return (
            run.running,
            _lacks_ranks(run),
            run.samples_per_s is None,
            run.composition is None,
            bool(run.incomplete),
            given[run.name][0],
        )

    second_copies = {}
    for same in copies.values():
        kept = min(same, key=rank)
        second_copies.update({run.label: kept.label for run in same if run is not kept})
    return second_copies


def problems_of_runs(runs: Sequence[StudyRun], entries: Sequence[RunEntry]) -> list[Problem]:
    """What is wrong with single runs."""
    problems = []
    for run in runs:
        problems += _incomplete(run)
        if run.samples_per_s is None and not run.running:
            speed = (Figure.SAMPLES_PER_S, Figure.THROUGHPUT)
            why = next((cause_text(missing) for missing in run.missing if missing.figure in speed), "")
            problems.append(
                _of_run(REFUSE, ProblemKind.NO_SPEED, words.no_speed(run.label, why), run, FIGURES)
            )
        problems += _negative(run)
    for label, kept in _second_copies(runs, entries).items():
        text = words.same_run(label, kept)
        problem = ProblemKind.SAME_RUN
        problems.append(Problem(severity=REFUSE, id=problem, text=text, runs=(label,), affects=FIGURES))
    return [*problems, *_shared(runs, entries)]


def _of_run(
    severity: Severity, kind: ProblemKind, text: str, run: StudyRun, affects: StudyParts = EVERYTHING
) -> Problem:
    return Problem(severity=severity, id=kind, text=text, runs=(run.label,), affects=affects)


def _incomplete(run: StudyRun) -> list[Problem]:
    if run.running:
        return [_of_run(REFUSE, ProblemKind.RUNNING, words.running(run.label), run, FIGURES)]
    problems = []
    if _lacks_ranks(run):
        text = words.missing_ranks(run.label, run.num_ranks_seen, run.world_size or 0)
        problems.append(_of_run(REFUSE, ProblemKind.MISSING_RANKS, text, run, FIGURES))
    elif _unseen(run) > 0:
        text = words.imported_ranks(run.label, run.num_ranks_seen, run.world_size)
        problems.append(_of_run(WARN, ProblemKind.MISSING_RANKS, text, run, FIGURES))
    causes = zip(run.incomplete, run.incomplete_causes, strict=True)
    other_reasons = [reason for reason, cause in causes if cause is not Cause.RANKS_MISSING]
    if other_reasons:
        problems.append(
            _of_run(WARN, ProblemKind.INCOMPLETE, words.incomplete(run.label, other_reasons), run)
        )
    return problems


def _negative(run: StudyRun) -> list[Problem]:
    """Shares that are none. They are shown as missing."""
    bad = bad_factors(run)
    if not bad:
        return []
    text = words.bad_factors(run.label, bad)
    return [_of_run(REFUSE, ProblemKind.NEGATIVE_EFFICIENCY, text, run, (StudyPart.EFFICIENCY,))]


def without_bad_factors(run: StudyRun) -> StudyRun:
    """The run with an efficiency that holds shares, or with none and the reason."""
    if run.efficiency is None or not bad_factors(run):
        return run
    lost = missing_figure(Figure.PARALLEL_EFFICIENCY, Cause.BAD_FACTORS, run=run.label)
    return replace(run, efficiency=None, missing=(*run.missing, lost))


def bad_factors(run: StudyRun) -> dict[str, float]:
    """Factors of its efficiency that are below 0 or above 1."""
    factors = {}
    for factor in _SHARES:
        value = run.efficiency.value(factor) if run.efficiency else None
        if value is not None and not 0 <= value <= MOST:
            factors[factor.value] = float(value)
    return factors


def _shared(runs: Sequence[StudyRun], entries: Sequence[RunEntry]) -> list[Problem]:
    """What several runs have in common."""
    benches = {entry.name: entry.analysis.bench for entry in entries}
    problems = []

    def add(kind: ProblemKind, affected: Sequence[StudyRun], affects: StudyParts = FIGURES) -> None:
        labels = tuple(run.label for run in affected)
        if labels:
            text = words.shared(kind, labels, len(runs))
            problems.append(Problem(severity=WARN, id=kind, text=text, runs=labels, affects=affects))

    add(ProblemKind.DISTURBED, [run for run in runs if run.disturbed])
    add(ProblemKind.NO_WINDOWS, [run for run in runs if run.composition is None], (StudyPart.COMPOSITION,))
    traced = [
        run
        for run in runs
        if (bench := benches.get(run.name)) is not None
        and bench.traced_steps == COUNTED
        and run.samples_per_s is not None
    ]
    add(ProblemKind.TRACED_SPEED, traced)
    uneven = [run for run in runs if any(missing.figure is Figure.LATER_STEPS for missing in run.missing)]
    add(ProblemKind.UNEVEN_RANKS, uneven)
    add(ProblemKind.DIVERGED, [run for run in runs if run.diverged])
    return problems


def shared_differences(
    runs: Sequence[StudyRun], affects: StudyParts, *, libraries_of_groups: bool = False
) -> list[Problem]:
    """What makes comparing doubtful without forbidding it: versions, libraries, threads, steps, kernels.

    `libraries_of_groups`: versions of libraries must be the same within a group only: two frameworks have
    other libraries.
    """
    problems = []
    if libraries_of_groups:
        for group in dict.fromkeys(run.group for run in runs):
            of_group = [run for run in runs if run.group == group]
            sets = _sets(of_group, packages_of)
            if len(sets) > 1:
                text = words.libraries_of(group, sets)
                problems.append(_problem(WARN, ProblemKind.OTHER_PACKAGES, text, of_group, affects))
    for kind, of in _DOUBTS.items():
        if kind is ProblemKind.OTHER_PACKAGES and libraries_of_groups:
            continue
        sets = _sets(runs, of)
        if len(sets) > 1:
            is_steps = kind is ProblemKind.STEP_COUNTS
            text = _step_counts(runs, sets) if is_steps else words.doubtful(kind, sets)
            problems.append(_problem(WARN, kind, text, runs, affects))
    return problems


def _step_counts(runs: Sequence[StudyRun], sets: dict[str, list[str]]) -> str:
    """With those whose figures rest on far fewer steps than the others'."""
    most = max(run.num_steps or 0 for run in runs)
    few = {run.label: run.num_steps for run in runs if run.num_steps and run.num_steps <= FEW_STEPS * most}
    counts = (min(few.values(), default=0), max(few.values(), default=0))
    return words.step_counts(sets, list(few), counts, most)


def forbidding_differences(
    runs: Sequence[StudyRun],
    severity: Severity,
    affects: StudyParts,
    *,
    by: str | None = None,
    explained: Collection[str] = (),
) -> list[Problem]:
    """Other model, data type or machine: no ratio is formed across them (scaling, schemes), or, with WARN, it
    is shown and said.

    `explained`: facts that the runs are compared by, which is stated and forbids nothing. `by`: what `--by`
    names; a refusal says what to name besides. None: nothing that could be named would allow it.
    """
    problems = []
    networked = {machine_key(replace(run, world_size=1)) for run in runs if run.world_size != 1}
    # One rank uses no network, so that its machine is that of any cluster of the same hosts.
    on_links = [run for run in runs if run.world_size != 1 or machine_key(run) not in networked]
    for kind, fact, of in FORBIDDING:
        sets = _sets(on_links if kind is ProblemKind.OTHER_MACHINE else runs, of)
        if len(sets) > 1:
            problems.append(_difference(runs, severity, affects, (kind, fact), sets, by, explained))
    unknown = [run for run in runs if not machine_key(run)]
    if unknown and len(runs) > 1:
        text = words.unknown_machine([run.label for run in unknown], len(runs))
        problems.append(_problem(WARN, ProblemKind.UNKNOWN_MACHINE, text, unknown, affects))
    return problems


def _difference(
    runs: Sequence[StudyRun],
    severity: Severity,
    affects: StudyParts,
    what: tuple[ProblemKind, str],
    sets: dict[str, list[str]],
    by: str | None,
    explained: Collection[str],
) -> Problem:
    """`what`: the problem, and the fact's name in `--by`."""
    kind, fact = what
    if fact in explained:
        severity, text = WARN, words.explained_difference(kind, sets, by)
    elif severity == REFUSE:
        text = words.refused_difference(kind, sets, None if by is None else with_name(by, fact))
    else:
        text = words.shown_difference(kind, sets)
    return _problem(severity, kind, text, runs, affects)


def batch_difference(
    runs: Sequence[StudyRun],
    severity: Severity,
    affects: StudyParts,
    *,
    by: str | None = None,
    explained: Collection[str] = (),
) -> list[Problem]:
    """Other samples per step, at the same number of ranks; arguments as of forbidding_differences."""
    sets = _sets(runs, lambda run: "" if run.batch is None else words.samples_per_step(run.batch))
    if len(sets) < 2:
        return []
    what = (ProblemKind.OTHER_BATCH, BATCH)
    return [_difference(runs, severity, affects, what, sets, by, explained)]


def packages_of(run: StudyRun) -> str:
    """Versions that decide speed, in words."""
    return ", ".join(f"{name} {version}" for name, version in sorted(run.packages.items()))


def _threads(run: StudyRun) -> str:
    return "" if run.threads is None else words.threads_per_rank(run.threads)


def _steps(run: StudyRun) -> str:
    """Of a run that its target ended, "": so many steps are its result."""
    is_result = run.learning is not None and run.learning.to_target is not None
    return "" if is_result or run.num_steps is None else words.steps(run.num_steps)


FORBIDDING: tuple[tuple[ProblemKind, str, Callable[[StudyRun], str]], ...] = (
    (ProblemKind.OTHER_MODEL, MODEL, lambda run: run.model),
    (ProblemKind.OTHER_DTYPE, DTYPE, lambda run: run.dtype),
    (ProblemKind.OTHER_MACHINE, MACHINE, machine_key),
)
_DOUBTS: dict[ProblemKind, Callable[[StudyRun], str]] = {
    ProblemKind.OTHER_VERSION: lambda run: run.perfscope_version,
    ProblemKind.OTHER_PACKAGES: packages_of,
    ProblemKind.OTHER_THREADS: _threads,
    ProblemKind.OTHER_KERNEL: lambda run: run.machine.kernel,
    ProblemKind.STEP_COUNTS: _steps,
}


def _sets(runs: Sequence[StudyRun], of: Callable[[StudyRun], str]) -> dict[str, list[str]]:
    """Known value -> labels; runs that do not know theirs are in none."""
    sets: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        if of(run):
            sets[of(run)].append(run.label)
    return dict(sorted(sets.items()))


def _problem(
    severity: Severity, kind: ProblemKind, text: str, runs: Sequence[StudyRun], affects: StudyParts
) -> Problem:
    labels = tuple(run.label for run in runs)
    return Problem(severity=severity, id=kind, text=text, runs=labels, affects=affects)
