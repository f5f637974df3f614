"""Families of schemes, in the order in which lists and documents show them. No torch here."""

from __future__ import annotations

FAMILIES: dict[str, str] = {
    "serial": "The reference",
    "dp": "Data parallelism",
    "ps": "Parameter servers",
    "hogwild": "Shared memory without locks",
    "easgd": "Elastic averaging",
    "mp": "Model parallelism",
    "cp": "Context parallelism",
    "emb": "Embedding tables divided",
    "pp": "Pipelines",
    "hy": "Hybrids",
    "mesh": "Any axes together",
}


def family_of(scheme: str) -> str:
    """`dp` of `dp.ddp`, `serial` of `serial`."""
    return scheme.partition(".")[0]
