"""How far a run is, from what its ranks have written so far; where the run directory is shared."""

from __future__ import annotations

from pathlib import Path

from perfscope.rundir import layout

_CHUNK = 1 << 20


class StepCounter:
    """Counts the steps of a run's first rank, reading only what has come since the last time.

    Args:
        run: the run directory; it need not be there yet.
    """

    def __init__(self, run: Path) -> None:
        self._ranks = run / layout.RANKS
        self._seen: dict[Path, tuple[int, int]] = {}  # file -> bytes read, steps in them

    def count(self) -> int | None:
        """Steps so far of the attempt that got furthest; None = nothing is there, or to be seen from here."""
        counts = [self._of(path) for path in sorted(self._ranks.glob(f"0*/{layout.STEPS_JSONL}"))]
        return max((count for count in counts if count is not None), default=None)

    def _of(self, path: Path) -> int | None:
        name = path.parent.name
        if name != "0" and not name.startswith("0."):
            return None
        offset, steps = self._seen.get(path, (0, 0))
        try:
            with path.open("rb") as file:
                file.seek(offset)
                while chunk := file.read(_CHUNK):
                    offset += len(chunk)
                    steps += chunk.count(b"\n[") + (chunk[:1] == b"[")
        except OSError:
            return steps or None
        self._seen[path] = offset, steps
        return steps
