"""Clauses as sentences, and the other way round."""

from __future__ import annotations


def capital(text: str) -> str:
    """`text` as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def in_sentence(sentence: str) -> str:
    """A sentence within another: ``Optimizer is slower`` -> ``optimizer is slower``; ``GPU 0 ...`` stays."""
    first = sentence.split(" ", 1)[0]
    return sentence if any(letter.isupper() for letter in first[1:]) else sentence[:1].lower() + sentence[1:]


def clause(sentence: str) -> str:
    """A sentence without its full stop, so that more can follow."""
    return sentence.removesuffix(".")
