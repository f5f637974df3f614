"""Lists of names and numbers in a sentence, and sentences in a sentence."""

from __future__ import annotations

from collections.abc import Iterable


def first_of(names: Iterable[object], most: int) -> str:
    """``a, b and 3 more``: the first `most` of them, and how many others there are."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"


def ranks_of(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 1 and 2 more`` from the ninth on."""
    listed = list(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {first_of(listed, 8)}"


def in_sentence(sentence: str) -> str:
    """A sentence within another: ``Optimizer is slower`` -> ``optimizer is slower``; ``GPU 0 ...`` stays."""
    first = sentence.split(" ", 1)[0]
    return sentence if any(letter.isupper() for letter in first[1:]) else sentence[:1].lower() + sentence[1:]
