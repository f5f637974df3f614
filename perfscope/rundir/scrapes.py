"""hosts/<host>/scrapes.jsonl: samples that a monitor of GPUs took, beside those of the sampler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from perfscope.errors import UnreadableFileError
from perfscope.rundir.samples import HostSamples, read_samples


def with_scrapes(
    sampled: HostSamples | None, path: Path, host: str, note: Callable[[Path, int, str], None]
) -> HostSamples | None:
    """A host's samples with those of its scrapes; None: there are none.

    Args:
        note: takes what cannot be read: path, lines, reason.
    """
    try:
        scraped = read_samples(path, host)
    except FileNotFoundError:
        return sampled
    except (OSError, UnreadableFileError) as error:
        note(path, 1, f"cannot be read: {getattr(error, 'reason', None) or error}")
        return sampled
    return scraped if sampled is None else replace(sampled, series=(*sampled.series, *scraped.series))
