"""Numbers with their nouns, and lists of names, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plural(noun: str, number: float, plurals: str = "") -> str:
    """`noun` as it follows the number; `plurals`: where it is not `noun` with an s."""
    return noun if number == 1 else plurals or f"{noun}s"


def counted(number: int, noun: str, plurals: str = "") -> str:
    """``1 rank``, ``1,024 ranks``."""
    return f"{number:,} {plural(noun, number, plurals)}"


def joined(names: Iterable[object], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``; "" for none."""
    *firsts, final = [str(name) for name in names] or [""]
    return f"{', '.join(firsts)} {last} {final}" if firsts else final


def first_of(names: Iterable[object], most: int, *, separator: str = ", ") -> str:
    """``a, b and 3 more``: the first `most` of them, and how many others there are."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return f"{separator.join(listed[:most])}{more}"


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and c``; of more than `most` the first, ``a, b and 3 more``."""
    return first_of(names, most) if len(names) > most else joined(names)


def ranks_of(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 1 and 2 more`` from the ninth on."""
    listed = list(ranks)
    return f"{plural('rank', len(listed))} {first_of(listed, 8)}"
