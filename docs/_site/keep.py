"""Keeps a run for pictures and example reports: without what tells of the machine, as a small archive.

python docs/_site/keep.py RUN NAME

Writes docs/_site/kept/NAME.tar.xz. Paths, UUIDs, MAC addresses, the kernel's name, the commit and the
arguments of other processes are replaced; of traces, events and arguments that perfscope does not read are
left out. Checksums are made anew. The same run gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from kept_runs import KEPT

from perfscope.ingest.classify import IGNORED_CATEGORIES, INSTANTS
from perfscope.rundir import seal
from perfscope.rundir.inventory import INVENTORY, take_inventory

NOT_READ = ("Ev Idx", "External id", "Input Strides", "cbid", "queued")  # arguments of trace events
UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")
PATH = re.compile(r"(?<![\w.…/])/(?:home|opt|root|work|tmp)/[^\s\"\\]*")
HEAD = re.compile(r'\A\{\s*"checksum": "crc32:[0-9a-f]{8}",')
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


class Cleaner:
    """Replaces in the texts of one run; the same by the same everywhere."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        self._macs: dict[str, str] = {}

    def text(self, text: str) -> str:
        """A file of the run, without what tells of the machine."""
        text = re.sub(r'("kernel": ?)"[^"]*"', r'\1"6.1.0"', text)
        neighbor = r'("name":"([^"]*)"[^{}]*?"command":)"(?:[^"\\]|\\.)*"'
        text = re.sub(neighbor, r'\1"\2"', text)
        text = re.sub(r'("cwd": ?)"[^"]*"', r'\1"/"', text)
        text = re.sub(r'("git": ?)\{[^}]*\}', r"\1null", text)
        text = PATH.sub(lambda found: found[0].rpartition("/")[2], text)
        text = UUID.sub(lambda found: self._number(self._uuids, found[0], _uuid), text)
        return MAC.sub(lambda found: self._number(self._macs, found[0], "02:00:00:00:00:{:02x}".format), text)

    @staticmethod
    def _number(known: dict[str, str], found: str, make: Any) -> str:
        return known.setdefault(found, make(len(known) + 1))


def _uuid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012x}"


def trace(text: str) -> str:
    """A trace without the events and arguments that perfscope does not read; the rest as it is."""
    document: dict[str, Any] = json.loads(text)
    events = document.pop("traceEvents")
    lines = []
    for event in events:
        if event.get("cat") in IGNORED_CATEGORIES - {INSTANTS}:
            continue
        arguments = event.get("args", {})
        for name in NOT_READ:
            arguments.pop(name, None)
        # Numbers that differ last: it compresses better.
        times = {key: event.pop(key) for key in ("dur", "ts") if key in event}
        lines.append(json.dumps(event | times, ensure_ascii=False, separators=(",", ":")))
    return json.dumps(document)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


def reseal(path: Path, document: dict[str, Any] | None = None) -> None:
    """The JSON document with its checksum; `document`: what it is to hold from now on."""
    text = path.read_text(encoding="utf-8")
    if not HEAD.match(text):
        return
    if document is not None:
        rest = {key: value for key, value in document.items() if key != seal.CHECKSUM}
        text = json.dumps(rest, indent=1, ensure_ascii=False)
    else:
        text = HEAD.sub("{", text)
    path.write_text(seal.sealed(text, path.name), encoding="utf-8")


def clean(run: Path) -> None:
    """Changes the run directory."""
    for path in sorted(run.rglob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    cleaner = Cleaner()
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    for path in files:
        text = cleaner.text(path.read_text(encoding="utf-8"))
        is_trace = path.parent.name == "windows" and '"traceEvents"' in text
        path.write_text(trace(text) if is_trace else text, encoding="utf-8")
    for path in files:
        if path.suffix == ".json":
            document = json.loads(path.read_text(encoding="utf-8"))
            seals = document.get(seal.FILES)
            for name in seals or ():
                seals[name] = seal.seal_of((path.parent / name).read_bytes())
            reseal(path, document if seals else None)
    record = run / "run.json"
    document = json.loads(record.read_text(encoding="utf-8"))
    reseal(record, document | {INVENTORY: take_inventory(run, is_still=True)})


def pack(run: Path, archive: Path) -> None:
    """Writes the archive; nothing in it is of this machine or moment."""
    ended_s = json.loads((run / "run.json").read_text(encoding="utf-8"))["end_unix_ns"] // 10**9
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for path in [run, *sorted(run.rglob("*"))]:
            entry = packed.gettarinfo(path, str(path.relative_to(run.parent)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode, entry.mtime = 0o755 if path.is_dir() else 0o644, ended_s
            packed.addfile(entry, io.BytesIO(path.read_bytes()) if path.is_file() else None)
    archive.write_bytes(lzma.compress(data.getvalue(), filters=FILTERS))


def main() -> None:
    """Keeps the run that is named."""
    run, name = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report.*", "timeline.*"))
        clean(copy)
        pack(copy, KEPT / f"{name}.tar.xz")


if __name__ == "__main__":
    main()
