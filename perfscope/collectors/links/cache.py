"""Where measured links are kept: a file per set of hosts, beside the ceilings of these hosts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfscope.collectors.ceilings.cache import default_folder, fingerprint, keep
from perfscope.collectors.ceilings.host import read_host
from perfscope.collectors.context import Context

Document = dict[str, Any]
ENV_EMULATED = "PERFSCOPE_CLUSTER"  # set for the ranks of an emulated cluster: what its links are


def own_fingerprint(ctx: Context) -> str:
    """Of this host's hardware: figures of another are not found."""
    from perfscope.collectors.gpu.registry import driver_names

    return fingerprint(read_host(ctx), driver_names(ctx))


def store(document: Document, folder: Path | None = None) -> None:
    """Keep it for its set of hosts, at once or not at all."""
    keep((folder or default_folder()) / _name(document["hosts"], document["emulated"]), document)


def load(ctx: Context, host: str, folder: Path | None = None) -> list[Document]:
    """What is kept of every set of hosts that this one belongs to; its own alone goes first."""
    folder, emulated = folder or default_folder(), os.environ.get(ENV_EMULATED, "")
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.startswith("links-"))
    except OSError:
        return []
    hardware = own_fingerprint(ctx) if names else ""
    documents = []
    for name in names:
        with suppress(OSError, ValueError):
            document = json.loads((folder / name).read_text(encoding="utf-8"))
            if _is_sound(document, host, emulated, hardware):
                documents.append({**document, "cached": True})
    return sorted(documents, key=lambda document: (len(document["hosts"]), document["hosts"]))


def _name(hosts: Sequence[str], emulated: str) -> str:
    text = json.dumps([sorted(hosts), emulated])
    return f"links-{len(hosts)}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _is_sound(document: object, host: str, emulated: str, hardware: str) -> bool:
    if not isinstance(document, dict) or document.get("emulated") != emulated:
        return False
    hosts, fingerprints = document.get("hosts"), document.get("fingerprints")
    if not isinstance(hosts, list) or host not in hosts or not isinstance(fingerprints, dict):
        return False
    lists = all(isinstance(document.get(name), list) for name in ("calls", "numa", "missing"))
    return lists and fingerprints.get(host, hardware) == hardware
