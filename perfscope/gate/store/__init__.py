"""Where figures of earlier runs are kept: a committed JSON baseline, or an SQLite history."""

from __future__ import annotations

from perfscope.gate.store.entries import BaselineEntry, Store
from perfscope.gate.store.errors import BaselineError
from perfscope.gate.store.opening import open_store

__all__ = ["BaselineEntry", "BaselineError", "Store", "open_store"]
