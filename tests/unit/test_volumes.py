"""The one table of collective volumes: edges, factors and sums agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.volumes import backend_factor, bus_factor, edges, edges_from

RINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@given(collective=st.sampled_from(RINGS), num=st.integers(2, 40))
def test_every_rank_of_a_symmetric_collective_sends_its_bus_factor(collective: str, num: int) -> None:
    sent = dict.fromkeys(range(num), 0.0)
    received = dict.fromkeys(range(num), 0.0)
    for sender, receiver, share in edges(collective, range(num)):
        sent[sender] += share
        received[receiver] += share
    factor = bus_factor(collective, num)
    assert all(amount == pytest.approx(factor) for amount in (*sent.values(), *received.values()))


@given(collective=st.sampled_from(("broadcast", "reduce")), num=st.integers(2, 40))
def test_a_chain_moves_the_whole_to_every_other_rank(collective: str, num: int) -> None:
    moved = list(edges(collective, range(num)))
    assert sum(share for *_, share in moved) == num - 1
    assert {receiver for _, receiver, _ in moved} == set(range(1, num))


def test_gather_and_scatter_move_what_the_root_has_not() -> None:
    assert list(edges("gather", (5, 6, 7, 8))) == [(6, 5, 0.25), (7, 5, 0.25), (8, 5, 0.25)]
    assert list(edges("scatter", (5, 6))) == [(5, 6, 0.5)]


KINDS = (*RINGS, "broadcast", "reduce", "gather", "scatter", "barrier")


@given(collective=st.sampled_from(KINDS), num=st.integers(1, 20))
def test_a_members_own_edges_are_those_of_the_whole_call(collective: str, num: int) -> None:
    members = [100 + 7 * place for place in range(num)]
    own = [(members[place], *edge) for place in range(num) for edge in edges_from(collective, members, place)]
    assert sorted(own) == sorted(edges(collective, members))


def test_a_send_has_one_edge_and_its_receiver_none() -> None:
    assert list(edges_from("send", (4, 2), 0)) == [(2, 1.0)]
    assert list(edges_from("send", (4, 2), 1)) == []


def test_one_rank_sends_nothing_and_unknown_kinds_have_no_edges() -> None:
    assert list(edges("all_reduce", (3,))) == []
    assert list(edges("barrier", (0, 1))) == []


MEASURED = {  # (P, S in MiB): total over all ranks / S, counted on the interface with gloo of torch 2.13
    "all_reduce": {(2, 4): 2.000, (4, 4): 6.000, (4, 16): 6.000},
    "all_gather": {(2, 4): 1.00, (4, 4): 3.00},
    "reduce_scatter": {(2, 4): 2.00, (4, 4): 6.01},
    "broadcast": {(2, 16): 1.000, (4, 16): 3.009},
    "gather": {(2, 4): 0.500, (4, 4): 0.750},
    "reduce": {
        **{(2, 1): 1.500, (2, 4): 1.500, (2, 8): 2.000, (2, 16): 2.250, (2, 64): 2.438},
        **{(3, 6): 2.666, (3, 9): 3.000, (3, 12): 3.166, (3, 24): 3.416},
        **{(4, 1): 3.751, (4, 8): 3.750, (4, 16): 4.249, (4, 20): 4.357, (4, 64): 4.626},
    },
}


@pytest.mark.parametrize("collective", MEASURED)
def test_total_wire_bytes_of_gloo_are_those_measured(collective: str) -> None:
    for (num, mebibytes), measured in MEASURED[collective].items():
        ideal = sum(share for *_, share in edges(collective, range(num)))
        factor = backend_factor("gloo", collective, num, mebibytes << 20)
        assert ideal * factor == pytest.approx(measured, rel=0.005), (num, mebibytes)
