"""Wait states hold whatever the ranks do: sums fit into the calls, and ranks' numbers carry no meaning."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from perfscope.analysis.waits.analyze import analyze_waits
from perfscope.analysis.waits.results import LateCause, WaitAnalysis
from tests.support.synthetic_lines import Played, play

NUM_RANKS = 4
Programs = dict[int, list[list[tuple[Any, ...]]]]


@st.composite
def programs(draw: st.DrawFn) -> Programs:
    """Every rank does the same things, for times of its own."""
    kinds = draw(
        st.lists(
            st.sampled_from(("conv", "fc", "idle", "input_wait", "call", "queue")), min_size=1, max_size=8
        )
    )
    transfers = [draw(st.integers(1, 50)) for _ in kinds]
    result: Programs = {}
    for rank in range(NUM_RANKS):
        steps = []
        for _ in range(draw(st.just(2))):
            step: list[tuple[Any, ...]] = [("optimizer", 1 + draw(st.integers(0, 9)))]
            for kind, transfer in zip(kinds, transfers, strict=True):
                spent = draw(st.integers(0, 1000))
                if kind in {"conv", "fc"}:
                    step.append(("compute", kind, "forward", spent))
                elif kind in {"call", "queue"}:
                    step.append((kind, "main" if kind == "call" else "background", transfer))
                else:
                    step.append((kind, spent))
            steps.append([*step, ("wait",), ("call", "main", 3)])
        result[rank] = steps
    return result


def played(of: Programs) -> Played:
    everybody = tuple(range(NUM_RANKS))
    return play(of, {"main": everybody, "background": everybody})


def analyzed(one: Played) -> WaitAnalysis:
    return analyze_waits(one.lines, one.matches, one.clocks, one.hosts)


@settings(max_examples=40, deadline=None)
@given(programs())
def test_waiting_and_transfer_fit_into_the_calls(of: Programs) -> None:
    one = played(of)
    result = analyzed(one)
    in_calls = sum(int(match.duration.sum()) for match in one.matches)
    rows = [row for row in result.split if row.group is not None]
    slack = len(rows) * NUM_RANKS * 2 * 2  # each figure is rounded
    assert sum(row.wait_ns + row.transfer_ns for row in rows) * NUM_RANKS * 2 <= in_calls + slack
    for call in result.calls:
        assert 0 <= call.wait_ns <= call.max_wait_ns
        assert (call.late_rank is None) == (call.max_wait_ns == 0)
        assert (call.cause is None) == (call.late_rank is None)
    for rank in result.ranks:
        assert 0 <= rank.exposed_wait_ns <= rank.wait_ns
    for group in result.groups:
        assert sum(reason.share for reason in group.reasons) <= 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(programs())
def test_a_reason_is_at_least_a_third_of_the_lateness(of: Programs) -> None:
    for call in analyzed(played(of)).calls:
        if call.cause is not None and not call.cause.through:
            assert 3 * call.cause.excess_ns >= call.lateness_ns
            assert call.lateness_ns > 0 or call.cause.reason == "together"


@settings(max_examples=40, deadline=None)
@given(programs(), st.permutations(range(NUM_RANKS)))
def test_ranks_numbers_carry_no_meaning(of: Programs, order: list[int]) -> None:
    # Ties go to the lowest rank, so every rank is given an idle time of its own.
    apart = {rank: [[("idle", 1 << rank), *step] for step in steps] for rank, steps in of.items()}
    apart = {rank: [[_odd(op, rank) for op in step] for step in steps] for rank, steps in apart.items()}
    before, after = analyzed(played(apart)), analyzed(played({order[rank]: s for rank, s in apart.items()}))
    assert [_renamed(call, order) for call in before.calls if _alone(call)] == [
        _plain(call) for call in after.calls if _alone(call)
    ]
    assert [row for row in before.split] == [row for row in after.split]


def _odd(op: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    return (*op[:-1], op[-1] * 16 + (1 << rank)) if op[0] in {"compute", "idle", "input_wait"} else op


def _alone(call: Any) -> bool:
    """Whether no two ranks entered last together."""
    return bool(call.lateness_ns > 0)


def _plain(call: Any) -> tuple[Any, ...]:
    cause: LateCause | None = call.cause
    known = None if cause is None else structs.replace(cause, sentence="")
    return (call.step, call.seq, call.group, call.wait_ns, call.transfer_ns, call.late_rank, known)


def _renamed(call: Any, order: list[int]) -> tuple[Any, ...]:
    plain = list(_plain(call))
    plain[5] = None if call.late_rank is None else order[call.late_rank]
    if call.cause is not None:
        hops = tuple(
            structs.replace(hop, waiting_rank=order[hop.waiting_rank], late_rank=order[hop.late_rank])
            for hop in call.cause.through
        )
        plain[6] = structs.replace(call.cause, rank=order[call.cause.rank], through=hops, sentence="")
    return tuple(plain)
