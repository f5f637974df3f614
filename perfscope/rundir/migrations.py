"""Bringing the documents of older schema versions to the present one, and refusing newer ones.

A migration takes run.json as version N wrote it and returns it as version N+1 would have; the raw files
beside it keep their format for ever or get a reader of their own. Version 1 is the first released, so there
is nothing to bring up yet; the check is what matters today.
"""

from __future__ import annotations

from collections.abc import Callable

from perfscope.errors import RunDirectoryError
from perfscope.rundir.layout import SCHEMA_VERSION

Migration = Callable[[dict[str, object]], dict[str, object]]

# MIGRATIONS[N] turns a version N document into version N+1. Every version below SCHEMA_VERSION has one.
MIGRATIONS: dict[int, Migration] = {}


def migrate(document: dict[str, object], origin: str) -> dict[str, object]:
    """run.json of any known version, as the present version.

    Args:
        document: the parsed file.
        origin: how to name the run in an error.

    Raises:
        RunDirectoryError: no usable schema_version, or one newer than this perfscope reads.
    """
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise RunDirectoryError(f"{origin}: run.json names no schema_version: not a perfscope run")
    if version > SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{origin} was made by a newer perfscope (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}): upgrade perfscope to read it"
        )
    while version < SCHEMA_VERSION:
        document = {**MIGRATIONS[version](document), "schema_version": version + 1}
        version += 1
    return document
