"""The runs that pictures and example reports of the documentation are made of: archives in kept/."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

KEPT = Path(__file__).parent / "kept"
COMPARED = ("dp.packed", "hy.owt")  # before, after


def unpack(name: str, folder: Path) -> Path:
    """The run directory of this name, new below `folder`."""
    with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def fingerprint(name: str) -> str:
    """Of a kept run as it is stored."""
    return hashlib.sha256((KEPT / f"{name}.tar.xz").read_bytes()).hexdigest()


def first_screen(report_json: str) -> list[str]:
    """What the first screen of a run's report says, by the JSON report; other pictures are old."""
    found = json.loads(report_json)
    first = found["findings"][0]
    step = found["step_ns"]["median"]
    return [first["title"], first["action"], f"{step} ns"]
