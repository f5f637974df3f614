"""What a trace says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Metadata:
    """The top-level fields perfscope uses; None where the trace does not say."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)  # distributedInfo.pg_config
    reducers: list[str] = field(default_factory=list)  # groups of DDP's reducers, of a model recorded by us
    base_ns: int = 0  # to be added to every timestamp: baseTimeNanoseconds
    host: str | None = None
    devices: dict[int, str] = field(default_factory=dict)  # GPU index -> name
    notes: list[str] = field(default_factory=list)  # what the trace lacks
