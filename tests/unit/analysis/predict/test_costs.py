"""Cost formulas against their closed forms, and networks by name or as latency,bandwidth."""

from __future__ import annotations

import pytest

from perfscope.analysis.predict.costs import (
    HALVING_DOUBLING,
    LINEAR,
    RING,
    TREE,
    LinkCost,
    algorithms,
    collective_time_s,
)
from perfscope.analysis.predict.networks import READ, REMEMBERED, named_networks, parse_network
from perfscope.errors import UsageError

LINK = LinkCost(2e-6, 1e-9, 3e-10)
SIZE = 8e6


@pytest.mark.parametrize(
    ("collective", "algorithm", "alpha", "beta", "gamma"),
    [
        ("all_reduce", RING, 14, 1.75, 0.875),
        ("all_reduce", HALVING_DOUBLING, 6, 1.75, 0.875),
        ("all_reduce", TREE, 6, 2, 1),
        ("reduce_scatter", RING, 7, 0.875, 0.875),
        ("all_gather", RING, 7, 0.875, 0),
        ("all_gather", HALVING_DOUBLING, 3, 0.875, 0),
        ("broadcast", TREE, 3, 3, 0),
        ("broadcast", RING, 7, 1, 0),
        ("reduce", TREE, 3, 3, 3),
        ("all_to_all", LINEAR, 7, 0.875, 0),
        ("gather", LINEAR, 7, 0.875, 0),
        ("scatter", TREE, 3, 0.875, 0),
        ("barrier", None, 3, 0, 0),
    ],
)
def test_eight_ranks_cost_the_closed_form(
    collective: str, algorithm: str | None, alpha: float, beta: float, gamma: float
) -> None:
    expected = alpha * 2e-6 + beta * SIZE * 1e-9 + gamma * SIZE * 3e-10
    assert collective_time_s(collective, 8, SIZE, LINK, algorithm) == pytest.approx(expected)


def test_a_send_costs_one_message_and_one_rank_costs_nothing() -> None:
    assert collective_time_s("send", 2, SIZE, LINK) == pytest.approx(2e-6 + 8e-3)
    assert all(collective_time_s(name, 1, SIZE, LINK) == 0 for name in ("all_reduce", "broadcast", "barrier"))


def test_gloo_moves_an_all_reduce_for_a_reduce_scatter() -> None:
    plain = collective_time_s("reduce_scatter", 4, SIZE, LinkCost(0, 1e-9))
    assert collective_time_s("reduce_scatter", 4, SIZE, LinkCost(0, 1e-9), backend="gloo") == pytest.approx(
        2 * plain
    )


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_figures_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="latency"):
        LinkCost(bad, 1e-9)
    with pytest.raises(ValueError, match="payload"):
        collective_time_s("all_reduce", 4, bad, LINK)


def test_unknown_collectives_and_algorithms_are_named() -> None:
    assert algorithms("all_reduce") == (RING, HALVING_DOUBLING, TREE)
    assert algorithms("gossip") == ()
    with pytest.raises(ValueError, match="'gossip'; known: all_gather"):
        collective_time_s("gossip", 4, 1, LINK)
    with pytest.raises(ValueError, match="no tree formula for all_to_all; known: linear"):
        collective_time_s("all_to_all", 4, 1, LINK, TREE)
    with pytest.raises(ValueError, match="at least one rank"):
        collective_time_s("all_reduce", 0, 1, LINK)


def test_every_named_network_says_where_its_figures_are_from() -> None:
    rows = named_networks()
    assert {"edr", "hdr", "ndr", "opa", "1gbit", "10gbit", "25gbit", "100gbit", "fdr", "aries"} <= set(rows)
    for name, row in rows.items():
        assert row.name == name and row.source
        assert {row.latency_from, row.bandwidth_from} <= {READ, REMEMBERED, "derived"}
        assert 1e-7 < row.link.alpha_s < 1e-3
        assert 1e8 < (row.link.bandwidth_bytes_per_s or 0) < 1e11


def test_an_ethernet_port_carries_less_than_its_line_rate() -> None:
    bandwidth = parse_network("1gbit").link.bandwidth_bytes_per_s
    assert bandwidth == pytest.approx(117.7e6, rel=0.001)


@pytest.mark.parametrize(
    ("text", "alpha", "bytes_per_s"),
    [
        ("2us,100Gbit", 2e-6, 12.5e9),
        ("2 us, 100 Gbit/s", 2e-6, 12.5e9),
        ("1.5us,12.5GB/s", 1.5e-6, 12.5e9),
        ("500ns,940Mbit", 5e-7, 117.5e6),
        ("0.1ms,1Gb/s", 1e-4, 125e6),
        ("1us,10GiB/s", 1e-6, 10 * 2**30),
        ("1us,100Gbps", 1e-6, 12.5e9),
    ],
)
def test_latency_and_bandwidth_with_units(text: str, alpha: float, bytes_per_s: float) -> None:
    link = parse_network(text).link
    assert link.alpha_s == pytest.approx(alpha)
    assert link.bandwidth_bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "token-ring",
        "2us",
        "2,100Gbit",
        "2us,100",
        "2us,0Gbit",
        "-2us,1Gbit",
        "us,1Gbit",
        "2us,1Gbit,3",
        "2us,nan",
    ],
)
def test_a_bad_network_gives_one_line_that_says_what_would_do(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_network(text)
    message = str(caught.value)
    assert message.startswith("--network") and "\n" not in message
    assert "Gbit" in message or "2us" in message or "above 0" in message
