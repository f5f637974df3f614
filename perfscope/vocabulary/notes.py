"""Kinds of the notes that probes leave in rank.json and readers of traces in a window's summary."""

from __future__ import annotations

from enum import Enum


class NoteKind(str, Enum):
    """What a note is about."""

    WINDOW = "window"  # a window that was put off, lost, or cannot be traced
    STEPS = "steps"  # what is taken for a step
    NO_COUNTERS = "no_counters"  # why a host has no hardware counters
    NO_STEP_MARKS = "no_step_marks"  # the trace counts as one step
    OTHER = "other"


NO_COUNTERS_OF_HOST = (
    "no hardware counters of this host: "  # begins a note of NO_COUNTERS; the reason follows
)
