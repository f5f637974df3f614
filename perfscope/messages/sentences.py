"""Clauses as sentences, and the other way round."""

from __future__ import annotations


def capital(text: str) -> str:
    """`text` as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """A sentence's beginning as it goes on after a colon."""
    return text[:1].lower() + text[1:]
