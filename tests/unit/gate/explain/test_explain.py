"""`perfscope check` says why: known-truth runs with realistic noise, and really trained ones."""

from __future__ import annotations

import dataclasses
import gzip
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.gate.explain.explain import explain
from perfscope.gate.metrics import METRICS
from perfscope.gate.records import (
    PARTS,
    CollectiveUse,
    Composition,
    Fingerprint,
    LayerTime,
    Phases,
    RunFigures,
    Surroundings,
)
from perfscope.gate.results import Difference, Explanation, MetricVerdict, State

DATA = Path(__file__).parents[2].parent / "data" / "gate"
MS = 1e6
LAYERS = ("stem", "stem.conv", "block1", "block1.conv", "block2", "block2.conv", "block2.norm", "head")
LAYER_MS = (0.2, 0.9, 0.1, 3.6, 0.1, 2.4, 0.5, 0.3)  # forward; backward takes twice that
AROUND = Surroundings(
    commit="a" * 40,
    dirty=False,
    command=("python", "train.py"),
    hosts=("node1",),
    kernel="6.1",
    packages={"torch": "2.13.0", "python": "3.11.7"},
    environment={"OMP_NUM_THREADS": "1", "MASTER_PORT": "29500"},
    options={"windows": "4"},
    cpu_hz=3e9,
    throttled_ratio=0.0,
    pressure_ratio=0.15,
    neighbour_cpus=0.01,
    steal_ratio=0.0,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planted:
    """What is slower than in the base, per untraced step of a rank on average, ms."""

    layers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    input_wait: float = 0.0
    optimizer: float = 0.0
    idle: float = 0.0
    waiting: float = 0.0
    calls: float = 1.0
    size: float = 1.0  # factor of bytes and of the time that they take
    uniform: float = 1.0  # factor of all computation


NOTHING = Planted()


def made(num: int, seed: int, planted: Planted = NOTHING, around: Surroundings = AROUND) -> list[RunFigures]:
    """Runs of 2 ranks with a step of 30 ms, as noisy as small machines are."""
    around_words = msgspec.to_builtins(around)
    known = {name: value for name, value in around_words.items() if value is not None}  # not unused fields
    draw = random.Random(f"{seed} {planted} {known}")
    return [_run(draw, f"run{at}", planted, around) for at in range(num)]


def _run(draw: random.Random, name: str, planted: Planted, around: Surroundings) -> RunFigures:
    def noise(spread: float) -> float:
        return math.exp(draw.gauss(0, spread))

    pace = noise(0.03)
    true_ms = {
        layer: 3 * own + planted.layers.get(layer, 0.0) for layer, own in zip(LAYERS, LAYER_MS, strict=True)
    }
    true_ms |= {layer: own for layer, own in planted.layers.items() if layer not in true_ms}
    compute = sum(true_ms.values()) * planted.uniform
    transfer = 2.0 * planted.size
    untraced = {
        "compute": compute * pace,
        "exposed_comm": (transfer + planted.waiting) * pace * noise(0.1),
        "copy": 0.0,
        "input_wait": (0.4 + planted.input_wait) * noise(0.02),
        "optimizer": (0.35 + planted.optimizer) * noise(0.02),
        "idle": (3.0 + planted.idle) * pace,
    }
    step = sum(untraced.values())
    slow = 1.45 * noise(0.12)  # a trace slows this run down by so much
    traced = {part: own * slow * noise(0.03) for part, own in untraced.items()}
    traced["exposed_comm"] += 3.0 * noise(0.5)  # ranks that wait for one another's profiler
    return RunFigures(
        name=name,
        fingerprint=Fingerprint(world_size=2, num_cpus=2),
        metrics={"step_p10": 0.92 * step * MS},
        num_steps=139,
        phases=Phases(
            step=step * MS,
            input_wait=untraced["input_wait"] * MS,
            backward=(0.66 * untraced["compute"] + untraced["exposed_comm"]) * MS,
            optimizer=untraced["optimizer"] * MS,
        ),
        composition=Composition(
            step=sum(traced.values()) * MS, num_steps=6, **{part: own * MS for part, own in traced.items()}
        ),
        layers=tuple(
            LayerTime(
                layer=layer,
                forward_ns=own / 3 * planted.uniform * slow * noise(0.06) * MS,
                backward_ns=own * 2 / 3 * planted.uniform * slow * noise(0.06) * MS,
            )
            for layer, own in true_ms.items()
        ),
        collectives=(
            CollectiveUse(
                name="all_reduce over 2 ranks",
                calls=planted.calls,
                bytes=262144 * planted.size,
                duration_ns=traced["exposed_comm"] * MS,
                transfer_ns=transfer * slow * noise(0.3) * MS,
            ),
        ),
        surroundings=around,
    )


def verdicts(state: State) -> tuple[MetricVerdict, ...]:
    return (MetricVerdict(metric=METRICS["step_p10"], state=state),)


def explained(planted: Planted, seed: int = 0, num: int = 6, state: State = "worse") -> Explanation:
    return explain(made(num, seed), made(num, seed + 1000, planted), verdicts(state))


CAUSES = {
    "compute": Planted(layers={"block2": 2.8}),
    "input_wait": Planted(input_wait=2.8),
    "exposed_comm": Planted(calls=2, size=2.4),
    "optimizer": Planted(optimizer=2.0),
    "idle": Planted(idle=4.0),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_slowdown_of_a_tenth_is_put_down_to_the_part_that_was_slowed_down(cause: str) -> None:
    named = [explained(CAUSES[cause], seed).cause for seed in range(20)]
    assert named.count(cause) >= 19, named


def test_the_layer_itself_is_named_and_not_what_lies_in_it() -> None:
    found = explained(CAUSES["compute"])
    assert [one.what for one in found.layers][:1] == ["block2"]
    assert "block2.conv" not in [one.what for one in found.layers]
    takes = next(one.change_ns for one in found.parts if one.what == "compute")
    assert 1.5 * MS < takes < 4.5 * MS
    assert found.headline.startswith(f"Computation takes {takes / MS:.2f} ms longer per step (+")
    assert re.search(r"(nearly all|most) of it in block2 \(forward \+\d", found.headline)
    assert found.action == "Look at what changed in block2."


def test_a_layer_that_the_base_does_not_have_is_named_as_new() -> None:
    found = explained(Planted(layers={"extra": 3.0}))
    assert found.cause == "compute"
    assert found.layers[0].what == "extra"
    assert "not in the base" in found.layers[0].note


def test_several_layers_are_named_by_what_they_cost() -> None:
    found = explained(Planted(layers={"block2": 3.0, "block1": 6.0}))
    assert [one.what for one in found.layers] == ["block1", "block2"]
    assert "block1 (" in found.headline and "block2 (" in found.headline


def test_one_more_collective_is_named_with_its_calls_and_bytes() -> None:
    found = explained(CAUSES["exposed_comm"])
    assert found.collectives[0].what == "all_reduce over 2 ranks"
    assert found.collectives[0].note == "calls per step 1 → 2, bytes per step 256 KiB → 614 KiB"
    assert "calls per step 1 → 2" in found.headline


def test_more_bytes_in_the_same_calls_are_communication_too() -> None:
    found = explained(Planted(size=2.5))
    assert found.cause == "exposed_comm"
    assert "calls" not in found.collectives[0].note


def test_computation_slower_in_all_layers_alike_is_computation_in_no_layer() -> None:
    found = explained(Planted(uniform=1.2), num=8)
    assert found.cause == "compute"
    assert not found.layers
    assert "in no layer more than in the others" in found.headline


def test_a_late_rank_is_blamed_on_what_makes_it_late_and_not_on_the_waiting() -> None:
    # One of two ranks waits 8 ms for its input, the other as long for the first in the all-reduce.
    found = explained(Planted(input_wait=4.0, waiting=4.0))
    assert found.cause == "input_wait"
    assert "late ranks make others wait in communication (+" in found.headline
    assert found.collectives == () or "calls and bytes as before" in found.collectives[0].note


def test_between_like_runs_nothing_is_said_to_have_moved() -> None:
    causes = [explained(NOTHING, seed, state="ok") for seed in range(30)]
    assert {one.cause for one in causes} == {"unknown"}
    assert sum(one.headline.startswith("Nothing moved beyond the noise") for one in causes) >= 22


def test_without_a_verdict_like_runs_are_hardly_ever_said_to_differ() -> None:
    causes = [explain(made(6, seed), made(6, seed + 1000), ()).cause for seed in range(30)]
    assert causes.count("unknown") >= 27


def test_a_small_change_that_the_check_lets_pass_is_told_as_such() -> None:
    found = explained(Planted(input_wait=1.2), num=9, state="ok")
    assert found.cause == "unknown"
    assert "which the check lets pass; what moved in it: input wait +1.2" in found.headline


def test_an_improvement_is_named() -> None:
    slow, fast = made(6, 1, Planted(input_wait=4.0)), made(6, 2)
    found = explain(slow, fast, verdicts("better"))
    assert found.cause == "input_wait"
    assert "Input wait takes 4." in found.headline and "less per step" in found.headline
    assert not found.action


def test_a_part_that_moved_inside_an_unchanged_step_is_told() -> None:
    found = explained(Planted(input_wait=0.5), state="ok")
    assert found.cause == "unknown"
    assert "no more than the noise" in found.headline and "input wait +" in found.headline


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([NOTHING, *CAUSES.values()]), st.integers(3, 9), st.booleans())
def test_the_changes_of_the_parts_add_up_to_that_of_the_step(
    seed: int, planted: Planted, num: int, traced: bool
) -> None:
    base, head = made(num, seed), made(num, seed + 1, planted)
    if not traced:
        base, head = (
            [dataclasses.replace(run, composition=None, layers=(), collectives=()) for run in side]
            for side in (base, head)
        )
    found = explain(base, head, ())
    gaps = sorted(b.metrics["step_p10"] - a.metrics["step_p10"] for a in base for b in head)
    middle = len(gaps) // 2
    step = gaps[middle] if len(gaps) % 2 else (gaps[middle - 1] + gaps[middle]) / 2
    assert math.fsum(one.change_ns for one in found.parts) == pytest.approx(step, abs=1)
    assert all(one.low_ns <= one.change_ns <= one.high_ns for one in found.parts)
    if traced:
        assert {one.what for one in found.parts} == set(PARTS)


def test_the_order_of_the_runs_changes_nothing() -> None:
    base, head = made(7, 3), made(6, 4, CAUSES["compute"])
    assert explain(base, head, verdicts("worse")) == explain(base[::-1], head[::-1], verdicts("worse"))


def test_one_wild_run_does_not_change_the_cause() -> None:
    base, head = made(6, 5), made(6, 6, CAUSES["input_wait"])
    wild = _slowed(head[0], 3.0)
    found = explain(base, [wild, *head[1:]], verdicts("worse"))
    assert found.cause == "input_wait"


def test_pairs_take_the_drift_of_the_machine_out() -> None:
    drift = (1.0, 1.5, 1.1, 1.9, 1.3, 1.7)
    base = [
        dataclasses.replace(_slowed(run, by), pair=at)
        for at, (run, by) in enumerate(zip(made(6, 7), drift, strict=True))
    ]
    head = [
        dataclasses.replace(_slowed(run, by), pair=at)
        for at, (run, by) in enumerate(zip(made(6, 8, CAUSES["compute"]), drift, strict=True))
    ]
    paired = explain(base, head[::-1], verdicts("worse"))
    alone = [[dataclasses.replace(run, pair=None) for run in side] for side in (base, head)]
    unpaired = explain(alone[0], alone[1], verdicts("worse"))
    assert paired.cause == "compute" and paired.layers[0].what == "block2"
    assert _width(paired) < 0.6 * _width(unpaired)


def _width(found: Explanation) -> float:
    part = next(one for one in found.parts if one.what == "compute")
    return part.high_ns - part.low_ns


def _slowed(run: RunFigures, by: float) -> RunFigures:
    phases, traced = run.phases, run.composition
    assert phases and traced
    times = {name: getattr(phases, name) * by for name in ("step", "input_wait", "backward", "optimizer")}
    parts = {name: getattr(traced, name) * by for name in ("step", *PARTS)}
    return dataclasses.replace(
        run,
        phases=Phases(**times),
        metrics={"step_p10": run.metrics["step_p10"] * by},
        composition=Composition(num_steps=traced.num_steps, **parts),
        layers=tuple(
            dataclasses.replace(one, forward_ns=one.forward_ns * by, backward_ns=one.backward_ns * by)
            for one in run.layers
        ),
    )


# What was around


def surrounded(change: Callable[[Surroundings], Surroundings], planted: Planted) -> Explanation:
    return explain(made(6, 21), made(6, 22, planted, change(AROUND)), verdicts("worse"))


def difference(found: Explanation, what: str) -> Difference:
    return next(one for one in found.surroundings if one.what == what)


AROUNDS: dict[str, Callable[[Surroundings], Surroundings]] = {
    "clock": lambda own: dataclasses.replace(own, cpu_hz=2.4e9),
    "throttling": lambda own: dataclasses.replace(own, throttled_ratio=0.2),
    "steal": lambda own: dataclasses.replace(own, steal_ratio=0.2),
    "neighbours": lambda own: dataclasses.replace(own, neighbour_cpus=0.6),
    "package torch": lambda own: dataclasses.replace(own, packages={**own.packages, "torch": "2.14.0"}),
    "environment OMP_NUM_THREADS": lambda own: dataclasses.replace(own, environment={"OMP_NUM_THREADS": "4"}),
    "hosts": lambda own: dataclasses.replace(own, hosts=("node2",)),
    "kernel": lambda own: dataclasses.replace(own, kernel="6.18"),
}


@pytest.mark.parametrize("what", AROUNDS)
def test_a_machine_that_differs_is_to_be_looked_at_before_code_is_blamed(what: str) -> None:
    found = surrounded(AROUNDS[what], Planted(uniform=1.2))
    assert found.cause == "surroundings"
    assert found.surroundings[0].what == what and found.surroundings[0].weighty
    assert "Look at these before blaming code." in found.headline
    assert found.surroundings[0].text.rstrip(".") in found.headline


def faulty(own: Surroundings) -> Surroundings:
    return dataclasses.replace(own, faults_per_step=12_400.0, fault_ratio=0.18)


def test_page_faults_that_can_be_the_slowdown_are_named_with_what_holds_the_heap_still() -> None:
    found = surrounded(faulty, Planted(uniform=1.2))
    assert not any("--pin-heap" in note for note in found.notes)  # the base did not count them
    few = dataclasses.replace(AROUND, faults_per_step=12.0, fault_ratio=0.0)
    head = made(6, 22, Planted(uniform=1.2), faulty(AROUND))
    found = explain(made(6, 21, around=few), head, verdicts("worse"))
    (note,) = [note for note in found.notes if "--pin-heap" in note]
    assert note.startswith("Page faults per step went from 12 to 12,400, which can explain up to ")
    assert difference(found, "page faults").weighty
    # More allocations of the changed code make page faults as well: the code is not excused.
    assert found.cause != "surroundings"


def test_few_page_faults_more_explain_no_slowdown() -> None:
    few = dataclasses.replace(AROUND, faults_per_step=12.0, fault_ratio=0.0)
    more = dataclasses.replace(AROUND, faults_per_step=900.0, fault_ratio=0.02)
    found = explain(made(6, 21, around=few), made(6, 22, Planted(uniform=1.2), more), verdicts("worse"))
    assert not any("--pin-heap" in note for note in found.notes)


def test_a_lower_clock_is_told_with_its_figures() -> None:
    found = surrounded(AROUNDS["clock"], Planted(uniform=1.2))
    assert found.surroundings[0].text == "CPU clock: 3.00 GHz → 2.40 GHz."


def test_a_slower_layer_is_blamed_though_a_version_differs_and_that_is_said() -> None:
    found = surrounded(AROUNDS["package torch"], Planted(layers={"block2": 4.0}))
    assert found.cause == "compute"
    assert found.layers[0].what == "block2"
    assert "Package torch: 2.13.0 → 2.14.0." in found.action


def test_what_moved_in_the_code_beside_a_greater_disturbance_is_noted() -> None:
    found = surrounded(AROUNDS["neighbours"], Planted(uniform=1.5, layers={"block2": 2.0}))
    assert found.cause == "surroundings"
    assert any("moved by itself: block2 +" in note for note in found.notes)


def test_a_clock_too_little_lower_or_higher_is_not_blamed() -> None:
    little = surrounded(lambda own: dataclasses.replace(own, cpu_hz=2.95e9), Planted(uniform=1.2))
    higher = surrounded(lambda own: dataclasses.replace(own, cpu_hz=3.6e9), Planted(uniform=1.2))
    assert not little.surroundings
    assert not difference(higher, "clock").weighty
    assert little.cause == higher.cause == "compute"


def test_what_was_checked_is_not_taken_for_a_surrounding() -> None:
    found = surrounded(
        lambda own: dataclasses.replace(
            own, commit="b" * 40, dirty=True, command=("python", "train.py", "--more", "6")
        ),
        CAUSES["compute"],
    )
    assert found.cause == "compute"
    assert not any(one.weighty for one in found.surroundings)
    assert difference(found, "commit").text == "Commit: aaaaaaaaaaaa → bbbbbbbbbbbb."
    assert difference(found, "command").text == "Command: nothing → --more 6."


def test_ports_and_ranks_are_no_difference() -> None:
    found = surrounded(
        lambda own: dataclasses.replace(own, environment={**own.environment, "MASTER_PORT": "31337"}),
        CAUSES["compute"],
    )
    assert not found.surroundings


def test_runners_that_all_have_names_of_their_own_are_not_blamed() -> None:
    sides = [
        [
            dataclasses.replace(run, surroundings=dataclasses.replace(AROUND, hosts=(f"{label}{at}",)))
            for at, run in enumerate(side)
        ]
        for label, side in (("a", made(6, 31)), ("b", made(6, 32, CAUSES["compute"])))
    ]
    found = explain(sides[0], sides[1], verdicts("worse"))
    assert found.cause == "compute"
    assert not difference(found, "hosts").weighty


def test_more_pressure_without_neighbours_is_the_trainings_own() -> None:
    found = surrounded(lambda own: dataclasses.replace(own, pressure_ratio=0.6), Planted(uniform=1.2))
    assert not difference(found, "pressure").weighty
    assert found.cause == "compute"


# What cannot be seen


def test_without_traces_the_always_on_figures_still_name_the_loader() -> None:
    base, head = (_bare(side) for side in (made(6, 41), made(6, 42, CAUSES["input_wait"])))
    found = explain(base, head, verdicts("worse"))
    assert found.cause == "input_wait"
    assert any("no traced window" in note for note in found.notes)


def test_without_traces_computation_is_not_guessed() -> None:
    found = explain(_bare(made(6, 43)), _bare(made(6, 44, CAUSES["compute"])), verdicts("worse"))
    assert found.cause == "unknown"
    assert "backward pass +" in found.headline and "cannot be distinguished" in found.headline
    assert "--no-trace" in found.action


def test_of_runs_that_know_only_their_steps_only_that_is_said() -> None:
    base, head = (
        [dataclasses.replace(run, phases=None) for run in _bare(side)]
        for side in (made(6, 45), made(6, 46, CAUSES["compute"]))
    )
    found = explain(base, head, verdicts("worse"))
    assert found.cause == "unknown" and found.parts == ()
    assert "do not say where in the step" in found.headline


def test_traces_alone_without_the_probe_explain_too() -> None:
    base, head = (
        [dataclasses.replace(run, phases=None, metrics={}) for run in side]
        for side in (made(8, 47), made(8, 48, Planted(layers={"block2": 9.0})))
    )
    found = explain(base, head, verdicts("worse"))
    assert found.cause == "compute" and found.layers[0].what == "block2"


@pytest.mark.parametrize("num", [0, 1, 2])
def test_of_too_few_runs_nothing_is_concluded(num: int) -> None:
    found = explain(made(num, 51), made(6, 52, CAUSES["compute"]), verdicts("unknown"))
    assert found.cause == "unknown"
    assert "Too few runs" in found.headline and "--pairs" in found.action


def _bare(runs: Sequence[RunFigures]) -> list[RunFigures]:
    return [dataclasses.replace(run, composition=None, layers=(), collectives=()) for run in runs]


LACKS: dict[str, Callable[[RunFigures], RunFigures]] = {
    "nothing": lambda run: run,
    "phases": lambda run: dataclasses.replace(run, phases=None),
    "times of phases": lambda run: dataclasses.replace(run, phases=Phases(step=30 * MS)),
    "traces": lambda run: dataclasses.replace(run, composition=None, layers=(), collectives=()),
    "layers": lambda run: dataclasses.replace(run, layers=()),
    "collectives": lambda run: dataclasses.replace(run, collectives=()),
    "transfers": lambda run: dataclasses.replace(
        run,
        collectives=tuple(dataclasses.replace(one, bytes=None, transfer_ns=None) for one in run.collectives),
    ),
    "metrics": lambda run: dataclasses.replace(run, metrics={}),
    "surroundings": lambda run: dataclasses.replace(run, surroundings=Surroundings()),
    "traced time": lambda run: dataclasses.replace(
        run, composition=Composition(step=0.0, num_steps=0, **dict.fromkeys(PARTS, 0.0))
    ),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(LACKS)), min_size=6, max_size=12),
    st.sampled_from([NOTHING, *CAUSES.values()]),
    st.sampled_from(["worse", "ok", "better", "unknown"]),
)
def test_whatever_runs_lack_there_is_an_answer_in_plain_figures(
    lacks: list[str], planted: Planted, state: State
) -> None:
    runs = [*made(len(lacks) // 2, 61), *made(len(lacks) - len(lacks) // 2, 62, planted)]
    poorer = [LACKS[lack](run) for lack, run in zip(lacks, runs, strict=True)]
    found = explain(poorer[: len(lacks) // 2], poorer[len(lacks) // 2 :], verdicts(state))
    assert found.cause in (*PARTS, "surroundings", "unknown")
    assert found.headline.endswith(".")
    figures = [
        getattr(one, name) for one in (*found.parts, *found.layers, *found.collectives) for name in NUMBERS
    ]
    assert all(math.isfinite(one) for one in figures)


NUMBERS = ("base_ns", "head_ns", "change_ns", "low_ns", "high_ns")


def test_hostile_names_pass_unchanged_and_the_answer_is_plain_data() -> None:
    name = "block\x1b[31m</script>\u2028{0}%s"
    found = explained(Planted(layers={name: 4.0}))
    assert found.layers[0].what == name and name in found.headline
    again = msgspec.json.decode(msgspec.json.encode(found), type=Explanation)
    assert again == found


# Really trained runs: 2 ranks on 2 CPUs, a fifth of the step planted; tests/data/README.md tells of them.


def trained(cell: str) -> list[RunFigures]:
    with gzip.open(DATA / f"explain-{cell}.jsonl.gz") as lines:
        return [msgspec.json.decode(line, type=RunFigures) for line in lines]


@pytest.mark.parametrize(
    ("cell", "cause", "first"),
    [
        ("layer-20", "compute", "block2"),
        ("loader-20", "input_wait", ""),
        ("allreduce-20", "exposed_comm", "all_reduce over 2 ranks"),
    ],
)
def test_the_planted_cause_of_real_runs_is_named(cell: str, cause: str, first: str) -> None:
    base, head = trained("nothing"), trained(cell)
    draw = random.Random(cell)
    for num in (len(head), 5, 5):
        found = explain(draw.sample(base, num), draw.sample(head, num), verdicts("worse"))
        assert found.cause == cause, found.headline
        moved = (*found.layers, *found.collectives) if cause != "exposed_comm" else found.collectives
        assert not first or moved[0].what == first


def test_half_of_the_like_real_runs_against_the_other_half_show_nothing() -> None:
    runs = trained("nothing")
    found = explain(runs[::2], runs[1::2], verdicts("ok"))
    assert found.cause == "unknown"
    assert not found.layers and not found.collectives
