"""A history's series: changes with their commits, what moved in the step, what changed around it."""

from __future__ import annotations

import dataclasses
import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfscope.gate.metrics import METRICS
from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.store import open_store
from perfscope.gate.trend import Trend, parts_of, short_commit, trend, trends

DATA = Path(__file__).parents[1] / "data" / "gate"
P10 = METRICS["step_p10"]
DAY = 86_400 * 10**9
START = 1_791_000_000_000_000_000


def real_runs() -> list[RunFigures]:
    with gzip.open(DATA / "explain-nothing.jsonl.gz") as lines:
        return [msgspec.json.decode(line, type=RunFigures) for line in lines]


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
    composition = dataclasses.replace(
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
    assert change.between == "between runs 26 and 27"
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
