"""What the ranks say of themselves in rank.json, as several parts of the analysis ask it."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analysis.source import Document


def is_torch(metas: Mapping[int, Document]) -> bool:
    """Whether it is torch alone that trained, or, of runs that do not say, presumably.

    Torch's windows begin with a root module, and its words (no_sync, bucket_cap_mb) help only its users.
    """
    told = [meta.get("framework") for meta in metas.values()]
    names = {str(one.get("name")) for one in told if isinstance(one, dict)}
    return not names or names == {"torch"}
