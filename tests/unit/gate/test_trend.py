"""A history's series: changes with their commits, what moved in the step, what changed around it."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec import structs

from perfscope.gate.metrics import METRICS
from perfscope.gate.records import Fingerprint, RunFigures, Surroundings
from perfscope.gate.store import open_store
from perfscope.gate.trend import Trend, parts_of, sessions_of, short_commit, trend, trends

DATA = Path(__file__).parents[2] / "data" / "gate"
P10 = METRICS["step_p10"]
DAY = 86_400 * 10**9
MINUTE = 60 * 10**9
START = 1_791_000_000_000_000_000


@functools.cache
def real_runs() -> tuple[RunFigures, ...]:
    with gzip.open(DATA / "explain-nothing.jsonl.gz") as lines:
        return tuple(msgspec.json.decode(line, type=RunFigures) for line in lines)


def slower(run: RunFigures, part: str, extra_ns: float) -> RunFigures:
    """The run with `extra_ns` more of a part in every step."""
    assert run.phases is not None and run.composition is not None
    step = run.phases.step
    metrics = dict(run.metrics)
    for name in ("step_p10", "step_mean", *([part] if part in ("input_wait", "exposed_comm") else [])):
        metrics[name] += extra_ns
    metrics["throughput"] *= step / (step + extra_ns)
    waits = {"input_wait": (run.phases.input_wait or 0.0) + extra_ns} if part == "input_wait" else {}
    own = run.composition
    composition = structs.replace(
        own,
        step=own.step + extra_ns,
        **{part: getattr(own, part) + extra_ns},
    )
    phases = dataclasses.replace(run.phases, step=step + extra_ns, **waits)
    return dataclasses.replace(run, metrics=metrics, phases=phases, composition=composition)


def made_history(
    num: int = 40, at: int = 26, part: str = "compute", by: float = 0.1, spread: float = 0.012, seed: int = 3
) -> list[RunFigures]:
    """Real runs brought to one speed, with a day and a commit each, `by` slower from run `at` on."""
    base = [run for run in real_runs() if run.metrics["step_p10"] < 29e6]
    typical = float(np.median([run.metrics["step_p10"] for run in base]))
    random = np.random.default_rng(seed)
    runs = []
    for number in range(num):
        own = base[number % len(base)]
        noise = float(np.exp(random.normal(0, spread))) * typical - own.metrics["step_p10"]
        own = slower(own, "idle", noise)
        if number >= at:
            own = slower(own, part, by * typical)
        around = dataclasses.replace(
            own.surroundings, start_unix_ns=START + number * DAY, commit=f"{number + 1:02x}" * 20, dirty=False
        )
        runs.append(dataclasses.replace(own, name=f"nightly-{number:03d}", surroundings=around, clean=True))
    return runs


@dataclasses.dataclass(frozen=True)
class Kept:
    name: str
    fingerprint: Fingerprint


class InMemory:
    """The part of a store that trends need."""

    def __init__(self, kept: Mapping[str, Sequence[RunFigures]]) -> None:
        self._runs = {(name, run.fingerprint.key): list[RunFigures]() for name in kept for run in kept[name]}
        self._kinds = {run.fingerprint.key: run.fingerprint for own in kept.values() for run in own}
        for name, own in kept.items():
            for run in own:
                self._runs[name, run.fingerprint.key].append(run)

    def entries(self) -> list[Kept]:
        return [Kept(name, self._kinds[key]) for name, key in self._runs]

    def runs(self, name: str, key: str) -> list[RunFigures]:
        return self._runs[name, key]


def of(runs: Sequence[RunFigures], metric: str = "step_p10") -> Trend:
    return trend("train", runs[0].fingerprint, runs, METRICS[metric])


@pytest.mark.parametrize("part", ["compute", "input_wait"])
def test_a_change_stands_between_its_commits_and_names_the_part_that_moved(part: str) -> None:
    (change,) = of(made_history(part=part, by=0.12)).changes
    assert change.between == "between 1a1a1a1 and 1b1b1b1"
    assert (change.before.name, change.after.name) == ("nightly-025", "nightly-026")
    assert change.is_worse
    assert change.worse == pytest.approx(0.12, abs=0.02)
    assert change.cause == part
    assert change.moved is not None and change.moved.what == part
    assert change.moved.change_ns == pytest.approx(0.12 * 26.2e6, rel=0.35)


def test_an_improvement_is_better_whatever_the_metric_calls_better() -> None:
    runs = made_history(by=-0.12)
    times, rates = of(runs), of(runs, "throughput")
    assert [one.is_worse for one in times.changes] == [False]
    assert all(not one.is_worse for one in rates.changes)
    assert not times.latest_is_worse
    fallen = of(made_history(by=0.3), "throughput")
    assert fallen.latest is not None and fallen.latest.is_worse
    assert fallen.latest.point.change is not None and fallen.latest.point.change < 0
    assert fallen.latest.worse is not None and fallen.latest.worse > 0


def test_what_changed_around_the_runs_at_that_moment_is_told_and_what_did_not_is_not() -> None:
    runs = made_history()
    for number, run in enumerate(runs):
        packages = {"numpy": "2.4.0" if number >= 26 else "2.3.1", "torch": "2.13.0"}
        hosts = ("node1",) if number % 2 else ("node2",)  # they take turns
        around = dataclasses.replace(
            run.surroundings, packages=packages, hosts=hosts, kernel="6.1" if number < 26 else "6.12"
        )
        runs[number] = dataclasses.replace(run, surroundings=around)
    (change,) = of(runs).changes
    weighty = [one.what for one in change.explanation.surroundings if one.weighty]
    assert any("numpy" in what for what in weighty)
    assert "kernel" in weighty
    assert not any("torch" in one.what for one in change.explanation.surroundings)
    assert "hosts" not in weighty


def test_pairs_of_old_checks_pair_nothing_across_a_history() -> None:
    runs = [
        dataclasses.replace(run, pair=number % 8, side="head") for number, run in enumerate(made_history())
    ]
    assert of(runs).changes[0].explanation.parts == of(made_history()).changes[0].explanation.parts


def test_disturbed_runs_are_shown_and_not_judged() -> None:
    runs = made_history(by=0.0)
    for number in range(30, 40):
        runs[number] = dataclasses.replace(slower(runs[number], "idle", 20e6), clean=False)
    found = of(runs)
    assert found.changes == ()
    assert found.num_disturbed == 10
    assert max(found.values) > 1.5 * max(found.current)
    assert len(found.values) == 40 and len(found.current) == 30


def test_too_few_clean_runs_are_said() -> None:
    runs = made_history(num=12)
    runs[:4] = [dataclasses.replace(run, clean=False) for run in runs[:4]]
    found = of(runs)
    assert found.search.lacking == 2
    assert found.changes == ()


def test_runs_that_failed_are_left_out_with_their_reason() -> None:
    runs = made_history()
    runs[5] = dataclasses.replace(runs[5], problem="its command ended with exit code 1", metrics={})
    found = of(runs)
    assert len(found.runs) == 39
    assert [(one.name, one.reason) for one in found.left_out] == [
        ("nightly-005", "its command ended with exit code 1")
    ]
    assert found.changes[0].after.name == "nightly-026"


def test_a_metric_that_some_runs_lack_has_gaps() -> None:
    runs = made_history()
    runs[3] = dataclasses.replace(runs[3], metrics={"step_mean": 1.0})
    found = of(runs)
    assert math.isnan(found.values[3])
    assert found.series("step_mean")[3] == 1.0
    assert found.changes[0].after.name == "nightly-026"
    assert of(runs, "energy").search.lacking == 10


def test_without_commits_runs_are_numbered() -> None:
    runs = [
        dataclasses.replace(run, surroundings=dataclasses.replace(run.surroundings, commit=""))
        for run in made_history()
    ]
    (change,) = of(runs).changes
    assert change.between == "between sessions 26 and 27"
    assert not change.same_commit


def test_a_change_within_one_commit_is_called_so() -> None:
    runs = [
        dataclasses.replace(run, surroundings=dataclasses.replace(run.surroundings, commit="ab" * 20))
        for run in made_history()
    ]
    (change,) = of(runs).changes
    assert change.between == "within abababa"
    assert change.same_commit


@pytest.mark.parametrize(
    ("commit", "short"),
    [("0123456789abcdef", "0123456"), ("v1.2-release", "v1.2-release"), ("", ""), ("abc", "abc")],
)
def test_hashes_are_shortened_and_other_names_are_not(commit: str, short: str) -> None:
    assert short_commit(commit) == short


def test_parts_add_up_to_the_step_with_and_without_a_trace() -> None:
    run = made_history()[0]
    assert sum(parts_of(run).values()) == pytest.approx(run.metrics["step_p10"])
    untraced = dataclasses.replace(run, composition=None)
    assert sum(parts_of(untraced).values()) == pytest.approx(run.metrics["step_p10"])
    assert parts_of(dataclasses.replace(untraced, phases=None)) == {}


def test_every_benchmark_and_kind_of_machine_is_a_series_the_newest_first(tmp_path: Path) -> None:
    old = made_history(num=12)
    later = dataclasses.replace(old[0].fingerprint, num_cpus=64)
    new = [
        dataclasses.replace(
            run,
            fingerprint=later,
            surroundings=dataclasses.replace(run.surroundings, start_unix_ns=START + 999 * DAY + number),
        )
        for number, run in enumerate(old)
    ]
    memory = InMemory({"train": [*old, *new], "other": old[:3]})
    store = open_store(tmp_path / "history.sqlite", create=True)
    for name, runs in (("train", old), ("train", new), ("other", old[:3])):
        store.put(name, runs)
    for history in (memory, store):
        found = trends(history, P10)
        assert [(one.name, len(one.runs), one.fingerprint.num_cpus) for one in found] == [
            ("train", 12, 64),
            ("train", 12, 2),
            ("other", 3, 2),
        ]
        assert [one.name for one in trends(history, P10, name="other")] == ["other"]
    assert [one.values for one in trends(memory, P10)] == [one.values for one in trends(store, P10)]


def figures(
    value: float, start_unix_ns: int | None, commit: str = "", clean: bool | None = True, **more: float
) -> RunFigures:
    return RunFigures(
        name=f"run-{start_unix_ns}",
        fingerprint=Fingerprint(),
        metrics={"step_p10": value, **more},
        surroundings=Surroundings(start_unix_ns=start_unix_ns, commit=commit),
        clean=clean,
    )


def simulated(seed: int, num_sessions: int, *, by: float = 0.0, at: int = 0) -> list[RunFigures]:
    """Six runs a session, a commit and a day each; the sessions differ as well as the runs in them."""
    random = np.random.default_rng((seed, num_sessions))
    runs = []
    for number in range(num_sessions):
        level = 25e6 * float(np.exp(random.normal(0, 0.02))) * (1 + (by if number >= at else 0.0))
        runs += [
            figures(
                level * float(np.exp(random.normal(0, 0.03))),
                START + number * DAY + place * 5 * MINUTE,
                f"{number:04x}" * 10,
            )
            for place in range(6)
        ]
    return runs


def test_sessions_that_differ_are_no_change() -> None:
    """Six runs of each of 8 to 40 commits: what the machine was like at each is not a change of the code."""
    found = [of(simulated(seed, num)) for num in (8, 12, 20, 40) for seed in range(25)]
    assert sum(bool(one.changes) for one in found) / len(found) <= 0.04
    assert {one.search.lacking for one in found} == {0, 2}


def test_a_tenth_more_from_one_session_on_is_found_there() -> None:
    found = [of(simulated(seed, 40, by=0.1, at=20)).changes for seed in range(8)]
    assert all(any(abs(one.point.index - 20) <= 1 and one.is_worse for one in own) for own in found)
    assert sum(len(own) == 1 for own in found) >= 7


def test_a_point_is_the_median_of_a_sessions_undisturbed_runs() -> None:
    own = [figures(value, START + place * MINUTE, "a") for place, value in enumerate((1.0, 2.0, 5.0))]
    own.append(figures(90.0, START + 3 * MINUTE, "a", clean=False))
    disturbed = [figures(70.0, START + 5 * MINUTE, "b", clean=False)]
    found = of([*own, *disturbed])
    assert found.values == (2.0, 70.0)
    assert found.searched[0] == 2.0 and math.isnan(found.searched[1])
    assert found.num_disturbed == 1
    assert found.sessions[0].middle("step_p10") is own[1]


def test_a_session_ends_with_an_hours_pause_or_another_commit() -> None:
    starts = (0, 30, 89, 150, 160, 170)  # minutes: between the third and the fourth lies more than an hour
    commits = ("a", "a", "a", "a", "b", "a")
    runs = [figures(1.0, START + at * MINUTE, commit) for at, commit in zip(starts, commits, strict=True)]
    assert [len(one.runs) for one in sessions_of(runs)] == [3, 1, 1, 1]
    assert [one.first for one in sessions_of(runs)] == [0, 3, 4, 5]
    nameless = [figures(1.0, START + at * MINUTE) for at in starts]
    assert [len(one.runs) for one in sessions_of(nameless)] == [3, 3]
    timeless = [figures(1.0, None, commit) for commit in ("a", "a", "b", "", "")]
    assert [len(one.runs) for one in sessions_of(timeless)] == [2, 1, 1, 1]
    assert sessions_of([]) == ()


def levels(*values: float, each: int = 10, metric: str = "step_p10", newest: int = 10) -> Trend:
    """Sessions of one run, `each` on every one of the levels, with a thousandth of noise."""
    random = np.random.default_rng(5)
    noise = np.exp(random.normal(0, 0.001, each * len(values)))
    runs = [
        figures(25e6 * value * noise[n], START + n * DAY)
        if metric == "step_p10"
        else figures(25e6 * noise[n], START + n * DAY, **{metric: value * 1e6 * noise[n]})
        for n, value in enumerate(value for value in values for _ in range(each))
    ]
    return trend("train", Fingerprint(), runs, METRICS[metric], newest=newest)


def test_only_a_change_beyond_the_metrics_threshold_fails() -> None:
    little = levels(1.0, 1.008)
    assert little.latest_is_worse and not little.latest_is_regression
    assert little.failing is None and not little.changes[0].is_beyond
    assert levels(1.0, 1.08).failing is not None
    assert levels(1.0, 0.9).failing is None and levels(1.0, 0.9).changes[0].is_beyond


def test_a_threshold_of_the_step_is_one_of_the_step() -> None:
    """A wait of 1 ms in a step of 25 ms that doubles costs 4 % of it, beyond 3 %; half as much does not."""
    assert levels(1.0, 2.0, metric="input_wait").failing is not None
    assert levels(1.0, 1.5, metric="input_wait").failing is None


def test_a_change_fails_while_it_is_among_the_newest_sessions_and_lasts() -> None:
    assert levels(1.0, 1.2, each=10).failing is not None
    assert levels(1.0, 1.2, each=11).failing is None
    assert levels(1.0, 1.2, each=11, newest=11).failing is not None
    back = levels(1.0, 1.2, 1.0, each=8, newest=16)
    assert [one.is_worse for one in back.changes] == [True, False] and back.failing is None
    lasting = levels(1.0, 1.2, 1.21, each=8, newest=16)
    assert [one.is_beyond for one in lasting.changes] == [True, False]
    assert lasting.failing is lasting.reported is lasting.changes[0]
