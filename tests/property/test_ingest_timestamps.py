"""Decimal text of microseconds to integer nanoseconds, against `fractions`."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from perfscope.ingest.timestamps import parse_us, to_ns

INT64 = 2**63 - 1
plain = st.builds(
    lambda whole, decimals: f"{whole}.{decimals}" if decimals else str(whole),
    st.integers(0, 10**15),
    st.text("0123456789", max_size=6),
)
odd = st.builds(
    lambda a, b, e: f"{a}.{b}e{e}", st.integers(-999, 999), st.integers(0, 999), st.integers(-9, 9)
)


def exact(text: str) -> int:
    """Nearest nanosecond, halves to even."""
    return round(Fraction(text) * 1000)


@given(st.lists(plain | odd, min_size=1, max_size=40))
def test_every_number_is_exact(texts: list[str]) -> None:
    ns, ok = parse_us(["\n".join(texts).encode()])
    expected = [exact(text) for text in texts]
    fits = [abs(value) <= INT64 for value in expected]
    assert ok.tolist() == fits
    assert ns.tolist() == [value if fit else 0 for value, fit in zip(expected, fits, strict=True)]
    assert [to_ns(text) for text in texts] == [
        v if fit else None for v, fit in zip(expected, fits, strict=True)
    ]


@given(st.lists(st.lists(plain, min_size=1, max_size=5), min_size=1, max_size=5))
def test_pieces_are_one_list(pieces: list[list[str]]) -> None:
    ns, _ = parse_us(["\n".join(piece).encode() for piece in pieces])
    assert ns.tolist() == [exact(text) for piece in pieces for text in piece]


@given(st.lists(st.text(max_size=8).filter(lambda t: "\n" not in t), min_size=1, max_size=20))
def test_words_are_no_numbers_and_do_not_disturb_their_neighbours(words: list[str]) -> None:
    lines = [text for word in words for text in (word, "7.25")]
    ns, ok = parse_us(["\n".join(lines).encode()])
    assert ns[1::2].tolist() == [7250] * len(words)
    assert ok[1::2].all()
    for word, value, good in zip(words, ns[::2], ok[::2], strict=True):
        assert good or value == 0, word


def test_epoch_microseconds_keep_their_nanoseconds() -> None:
    # float64 holds steps of 0.25 µs here.
    ns, _ = parse_us([b"1712195495519689.001\n1712195495519689.002"])
    assert ns.tolist() == [1712195495519689001, 1712195495519689002]
