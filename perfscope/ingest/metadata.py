"""What a trace says about itself."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Metadata(Struct):
    """The top-level fields perfscope uses; None where the trace does not say."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: list[dict[str, Any]] = []  # distributedInfo.pg_config
    reducers: list[str] = []  # groups of DDP's reducers, of a model recorded by us
    base_ns: int = 0  # to be added to every timestamp: baseTimeNanoseconds
    host: str | None = None
    devices: dict[int, str] = {}  # GPU index -> name
    notes: list[str] = []  # what the trace lacks
