"""Random jobs on an event loop: the replay gives them back, and what the loop gives with other transfers."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.replay.program import Change, Program
from perfscope.analysis.replay.replays import Replays, make_replays
from perfscope.analysis.whatif import changes
from tests.support.programs import Recorded, simulate

US = 1_000
LEAST = 150 * US
CHANCE = 100 * US  # a shorter wait for a background call may be taken for chance, by design

Job = list[list[list[tuple[Any, ...]]]]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, dict[str, tuple[int, ...]], dict[str, int]]:
    """2 or 4 ranks; blocking and background calls on the world and on halves of it, in one order."""
    num = draw(st.sampled_from((2, 4)))
    groups: dict[str, tuple[int, ...]] = {"world": tuple(range(num))}
    if num == 4:
        groups |= {"low": (0, 1), "high": (2, 3)}
    shape = draw(st.lists(st.sampled_from(("call", "start", "half")), min_size=1, max_size=5))
    transfer: dict[str, int] = {}
    ranks: Job = [[[] for _ in range(2)] for _ in range(num)]
    times = st.integers(LEAST // US, 5_000)
    for step in range(2):
        pending: list[str] = []
        for number, kind in enumerate(shape):
            name = f"{kind}{number}"
            transfer[name] = draw(times) * US if name not in transfer else transfer[name]
            for rank in range(num):
                actions = ranks[rank][step]
                actions.append(("work", draw(times) * US))
                half = "world" if num == 2 else ("low" if rank < 2 else "high")
                if kind == "call":
                    actions.append(("call", name, "world"))
                elif kind == "half":
                    actions.append(("call", name, half))
                else:
                    actions.append(("start", name, "world"))
            if kind == "start":
                pending.append(name)
        for rank in range(num):
            ranks[rank][step] += [("work", draw(times) * US), *(("wait", name) for name in pending)]
            ranks[rank][step].append(("optimizer", draw(times) * US))
    return ranks, groups, transfer


def replays(recorded: Recorded) -> Replays:
    found, missing = make_replays({0: recorded.lines}, recorded.matches, recorded.clocks)
    assert found is not None and not missing
    return found


def allowed_ns(ranks: Job) -> int:
    """What waits too short to be told from chance can hide, over both steps."""
    return CHANCE * sum(1 for step in ranks[0] for action in step if action[0] == "wait")


def scaled(factor: float) -> Any:
    def change(program: Program) -> Change:
        return Change(transfer=program.events.transfer * factor)

    return change


@settings(max_examples=60, deadline=None, derandomize=True)
@given(jobs())
def test_unchanged_it_gives_the_trace_back(
    job: tuple[Job, dict[str, tuple[int, ...]], dict[str, int]],
) -> None:
    ranks, groups, transfer = job
    recorded = simulate(ranks, groups, transfer)
    found = replays(recorded)
    assert abs(found.base_ns * 2 - recorded.wall_ns) <= allowed_ns(ranks)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(jobs(), st.sampled_from((0.0, 0.5, 2.0)))
def test_other_transfers_give_what_really_happens_then(
    job: tuple[Job, dict[str, tuple[int, ...]], dict[str, int]], factor: float
) -> None:
    ranks, groups, transfer = job
    found = replays(simulate(ranks, groups, transfer))
    truth = simulate(ranks, groups, {name: round(value * factor) for name, value in transfer.items()})
    predicted = found.step_ns(scaled(factor))
    assert predicted is not None
    # A background call that was waited for only after it had ended leaves no trace of that wait: where it
    # becomes slower, or what delayed the line becomes quicker, the replay may be too fast, never too slow.
    assert predicted * 2 <= truth.wall_ns + allowed_ns(ranks) + 1
    if all(action[0] != "start" for actions in ranks[0] for action in actions):
        assert abs(predicted * 2 - truth.wall_ns) <= 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(jobs())
def test_nothing_that_is_taken_away_makes_a_step_longer(
    job: tuple[Job, dict[str, tuple[int, ...]], dict[str, int]],
) -> None:
    found = replays(simulate(*job))
    for change in (changes.zero_transfer, changes.full_overlap, scaled(0.7)):
        step = found.step_ns(change)
        assert step is None or step <= found.base_ns
    assert (found.step_ns(scaled(1.3)) or 0) >= found.base_ns
