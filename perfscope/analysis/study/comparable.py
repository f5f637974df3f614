"""Which runs may be compared, and what is wrong with those that may not. Everything is said in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from perfscope.analysis.bench import COUNTED
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.study.grouping import BATCH, DTYPE, MACHINE, MODEL, with_name
from perfscope.analysis.study.machines import machine_key
from perfscope.analysis.study.results import REFUSE, WARN, Problem, RunEntry, Severity, StudyRun
from perfscope.messages.lists import counted
from perfscope.messages.missing import cause_text
from perfscope.messages.sentences import capital
from perfscope.messages.study import crowd, named, ranks
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.efficiency import PopFactor
from perfscope.vocabulary.figures import Figure

FIGURES = "scaling, schemes"
FEW_STEPS = 0.5  # of the most steps of a study's runs: speeds of fewer are noisier by far
MOST = 1.005  # of a share; half a per cent beyond 1 is what the replay is off by
_SHARES = tuple(one for one in PopFactor if one not in (PopFactor.COMPUTATION_SCALING, PopFactor.GLOBAL))


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
    """Labels of runs that stand in the study already -> that of the copy that counts.

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

    found = {}
    for same in copies.values():
        kept = min(same, key=rank)
        found.update({run.label: kept.label for run in same if run is not kept})
    return found


def problems_of_runs(runs: Sequence[StudyRun], entries: Sequence[RunEntry]) -> list[Problem]:
    """What is wrong with single runs."""
    found = []
    for run in runs:
        found += _incomplete(run)
        if run.samples_per_s is None and not run.running:
            speed = (Figure.SAMPLES_PER_S, Figure.THROUGHPUT)
            why = next((cause_text(one) for one in run.missing if one.figure in speed), "")
            why = f": {why}" if why else ""
            text = f"{run.label} has no samples/s{why}; it is left out of every ratio of samples/s."
            found.append(
                Problem(severity=REFUSE, id="no_speed", text=text, runs=(run.label,), affects=FIGURES)
            )
        found += _negative(run)
    for label, kept in _second_copies(runs, entries).items():
        text = (
            f"{label} is a run that stands in the study already, as {kept}: it counts once, not as a repeat."
        )
        found.append(Problem(severity=REFUSE, id="same_run", text=text, runs=(label,), affects=FIGURES))
    return [*found, *_shared(runs, entries)]


def _incomplete(run: StudyRun) -> list[Problem]:
    label, found = (run.label,), []
    if run.running:
        text = (
            f"{run.label} was not closed: it is still being written, or perfscope was killed. What it has so "
            "far is listed, but no ratio uses it; compare again when it has ended."
        )
        return [Problem(severity=REFUSE, id="running", text=text, runs=label, affects=FIGURES)]
    if _lacks_ranks(run):
        size = run.world_size or 0
        text = (
            f"{run.label} recorded {run.num_ranks_seen} of {ranks(size)}: its figures would be those of a "
            "part of the job, so that no ratio uses it."
        )
        found.append(Problem(severity=REFUSE, id="missing_ranks", text=text, runs=label, affects=FIGURES))
    elif _unseen(run) > 0:
        text = (
            f"{run.label} is imported from the traces of {run.num_ranks_seen} of {ranks(run.world_size)}: "
            "what it tells of the others is not known."
        )
        found.append(Problem(severity=WARN, id="missing_ranks", text=text, runs=label, affects=FIGURES))
    causes = zip(run.incomplete, run.incomplete_causes, strict=True)
    others = [reason for reason, cause in causes if cause is not Cause.RANKS_MISSING]
    if others:
        text = f"{run.label} is incomplete: {'; '.join(others)}. Its figures cover what was written."
        found.append(Problem(severity=WARN, id="incomplete", text=text, runs=label))
    return found


def _negative(run: StudyRun) -> list[Problem]:
    """Shares that are none. They are shown as missing."""
    if run.efficiency is None:
        return []
    bad = bad_factors(run)
    if not bad:
        return []
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in bad.items())
    text = (
        f"{run.label}: {figures} cannot be a share of anything (0 to 1); the clocks or the traces of this "
        "run disagree. These are shown as missing."
    )
    return [
        Problem(severity=REFUSE, id="negative_efficiency", text=text, runs=(run.label,), affects="efficiency")
    ]


def without_bad_factors(run: StudyRun) -> StudyRun:
    """The run with an efficiency that holds shares, or with none and the reason."""
    if run.efficiency is None or not bad_factors(run):
        return run
    lost = missing_figure(Figure.PARALLEL_EFFICIENCY, Cause.BAD_FACTORS, run=run.label)
    return replace(run, efficiency=None, missing=(*run.missing, lost))


def bad_factors(run: StudyRun) -> dict[str, float]:
    """Factors of its efficiency that are below 0 or above 1."""
    found = {}
    for factor in _SHARES:
        value = run.efficiency.value(factor) if run.efficiency else None
        if value is not None and not 0 <= value <= MOST:
            found[factor.value] = float(value)
    return found


def _shared(runs: Sequence[StudyRun], entries: Sequence[RunEntry]) -> list[Problem]:
    """What several runs have in common."""
    benches = {entry.name: entry.analysis.bench for entry in entries}
    found = []

    def add(id_: str, affected: Sequence[StudyRun], text: str, affects: str = FIGURES) -> None:
        labels = tuple(run.label for run in affected)
        if labels:
            who = crowd(labels, len(runs))
            said = text.format(names=who, were="was" if len(labels) == 1 else "were")
            if who != named(labels):  # "all 12 runs"; a name keeps its first letter
                said = capital(said)
            found.append(Problem(severity=WARN, id=id_, text=said, runs=labels, affects=affects))

    add(
        "disturbed",
        [run for run in runs if run.disturbed],
        "{names} {were} disturbed by something else on the machine: repeat, or read with care.",
    )
    add(
        "no_windows",
        [run for run in runs if run.composition is None],
        "{names} {were} recorded without a traced step: step composition, efficiency factors and what grew "
        "are missing there.",
        "composition",
    )
    traced = [
        run
        for run in runs
        if (bench := benches.get(run.name)) is not None
        and bench.traced_steps == COUNTED
        and run.samples_per_s is not None
    ]
    add(
        "traced_speed",
        traced,
        "{names} {were} too short: the steps their samples/s count were traced, which slows them; train more "
        "steps.",
    )
    add(
        "uneven_ranks",
        [run for run in runs if any(one.figure is Figure.LATER_STEPS for one in run.missing)],
        "The ranks of {names} recorded unequal numbers of steps: what follows the shortest is not compared "
        "between ranks.",
    )
    add("diverged", [run for run in runs if run.diverged], "{names} diverged: that speed trains nothing.")
    return found


def shared_differences(
    runs: Sequence[StudyRun], affects: str, *, libraries_of_groups: bool = False
) -> list[Problem]:
    """What makes comparing doubtful without forbidding it: versions, libraries, threads, steps, kernels.

    `libraries_of_groups`: versions of libraries must be the same within a group only: two frameworks have
    other libraries.
    """
    found = []
    if libraries_of_groups:
        for group in dict.fromkeys(run.group for run in runs):
            of_group = [run for run in runs if run.group == group]
            sets = _sets(of_group, packages_of)
            if len(sets) > 1:
                text = f"{group or 'The others'} ran with several versions of libraries: {_listed(sets)}."
                found.append(_problem(WARN, "other_packages", text, of_group, affects))
    for id_, what, of in _DOUBTS:
        if id_ == "other_packages" and libraries_of_groups:
            continue
        sets = _sets(runs, of)
        if len(sets) > 1:
            text = f"{what} differ: {_listed(sets)}. A difference in speed may come from there."
            if id_ == "step_counts":
                text = (
                    f"The runs trained unequal numbers of steps: {_listed(sets)}; compare losses by samples."
                    + _few_steps(runs)
                )
            found.append(_problem(WARN, id_, text, runs, affects))
    return found


def _few_steps(runs: Sequence[StudyRun]) -> str:
    """Whose figures rest on far fewer steps than the others'."""
    most = max(run.num_steps or 0 for run in runs)
    few = [run for run in runs if run.num_steps and run.num_steps <= FEW_STEPS * most]
    if not few:
        return ""
    counts = sorted({run.num_steps or 0 for run in few})
    said = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    return (
        f" The figures of {named([run.label for run in few])} rest on fewer steps, {said} against {most:,}."
    )


def forbidding_differences(
    runs: Sequence[StudyRun],
    severity: Severity,
    affects: str,
    *,
    by: str | None = None,
    explained: Collection[str] = (),
) -> list[Problem]:
    """Other model, data type or machine: no ratio is formed across them (scaling, schemes), or, with WARN, it
    is shown and said.

    `explained`: facts that the runs are compared by, which is said and forbids nothing. `by`: what `--by`
    names; a refusal says what to name besides. None: nothing that could be named would allow it.
    """
    found = []
    networked = {machine_key(replace(run, world_size=1)) for run in runs if run.world_size != 1}
    # One rank uses no network, so that its machine is that of any cluster of the same hosts.
    on_links = [run for run in runs if run.world_size != 1 or machine_key(run) not in networked]
    for id_, what, fact, of in FORBIDDING:
        sets = _sets(on_links if id_ == "other_machine" else runs, of)
        if len(sets) > 1:
            found.append(_difference(runs, severity, affects, (id_, what, fact), sets, by, explained))
    unknown = [run for run in runs if not machine_key(run)]
    if unknown and len(runs) > 1:
        who = crowd([run.label for run in unknown], len(runs))
        text = f"The machine of {who} was not recorded: whether it is that of the others cannot be told."
        found.append(_problem(WARN, "unknown_machine", text, unknown, affects))
    return found


def _difference(
    runs: Sequence[StudyRun],
    severity: Severity,
    affects: str,
    what: tuple[str, str, str],
    sets: dict[str, list[str]],
    by: str | None,
    explained: Collection[str],
) -> Problem:
    """`what`: the problem's id, the fact in words, and its name in `--by`."""
    id_, words, fact = what
    if fact in explained:
        severity, end = WARN, f"--by {by} names it, so that they are compared all the same."
    elif severity == REFUSE:
        end = "no ratio is formed between them."
        end += "" if by is None else f" To compare them all the same: --by {with_name(by, fact)}."
    else:
        end = "the figures stand side by side, but not like for like."
    return _problem(severity, id_, f"The runs' {words} differ: {_listed(sets)}; {end}", runs, affects)


def batch_difference(
    runs: Sequence[StudyRun],
    severity: Severity,
    affects: str,
    *,
    by: str | None = None,
    explained: Collection[str] = (),
) -> list[Problem]:
    """Other samples per step, at the same number of ranks; arguments as of forbidding_differences."""
    sets = _sets(runs, lambda run: "" if run.batch is None else f"{run.batch:,} samples per step")
    if len(sets) < 2:
        return []
    what = ("other_batch", "batches", BATCH)
    return [_difference(runs, severity, affects, what, sets, by, explained)]


def packages_of(run: StudyRun) -> str:
    """Versions that decide speed, in words."""
    return ", ".join(f"{name} {version}" for name, version in sorted(run.packages.items()))


def _threads(run: StudyRun) -> str:
    return "" if run.threads is None else f"{counted(run.threads, 'thread')} per rank"


def _steps(run: StudyRun) -> str:
    return "" if run.num_steps is None else f"{run.num_steps:,} steps"


FORBIDDING: tuple[tuple[str, str, str, Callable[[StudyRun], str]], ...] = (
    ("other_model", "models", MODEL, lambda run: run.model),
    ("other_dtype", "data types", DTYPE, lambda run: run.dtype),
    ("other_machine", "machines", MACHINE, machine_key),
)
_DOUBTS: tuple[tuple[str, str, Callable[[StudyRun], str]], ...] = (
    ("other_version", "Versions of perfscope", lambda run: run.perfscope_version),
    ("other_packages", "Versions of libraries", packages_of),
    ("other_threads", "Threads per rank", _threads),
    ("other_kernel", "Kernels", lambda run: run.machine.kernel),
    ("step_counts", "Steps", _steps),
)


def _sets(runs: Sequence[StudyRun], of: Callable[[StudyRun], str]) -> dict[str, list[str]]:
    """Known value -> labels; runs that do not know theirs are in none."""
    sets: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        if of(run):
            sets[of(run)].append(run.label)
    return dict(sorted(sets.items()))


def _listed(sets: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} ({named(labels)})" for value, labels in sets.items())


def _problem(severity: Severity, id_: str, text: str, runs: Sequence[StudyRun], affects: str) -> Problem:
    labels = tuple(run.label for run in runs)
    return Problem(severity=severity, id=id_, text=text, runs=labels, affects=affects)
