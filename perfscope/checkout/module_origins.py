"""Which modules would be imported from a working tree, and from which of its folders?

Not imported by perfscope: `checkout.editable_check` hands this text to the user's interpreter as `python -c`,
with the working tree, the checkout and the folder that Python would put first. Python >= 3.8, standard
library only. Modules are looked up, none is imported. The answer is stdout's last line, JSON:
module -> folder.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Iterator  # noqa: UP035 - of typing, for Python 3.8
from urllib.parse import unquote

MOST_ENTRIES, MOST_NAMES = 2000, 1000
SUFFIXES = (".py", ".so", ".pyd")


def below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def of_head(path: Path, top: Path, tree: Path) -> bool:
    """Whether it is the working tree's: neither the checkout's, nor of a virtual environment inside."""
    real = path.resolve()
    if not below(real, top) or below(real, tree) or below(real, top / ".git"):
        return False
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)} - {top}
    return not any(below(real, prefix) for prefix in prefixes)


def entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:MOST_ENTRIES]
    except OSError:  # no folder (a zip file), or not for us
        return []


def modules(folder: Path) -> Iterator[str]:
    """Names that can be imported from a folder."""
    for entry in entries(folder):
        name, dot, _ = entry.name.partition(".")
        inside = entries(entry) if not dot and entry.is_dir() else [entry]
        if name.isidentifier() and any(path.suffix in SUFFIXES for path in inside):
            yield name


def by_paths(top: Path, tree: Path) -> Iterator[str]:
    """From sys.path (its first place excepted): .pth files put the working tree there; links lead into it."""
    for entry in sys.path[1:]:
        folder = Path(entry)
        if of_head(folder, top, tree):
            yield from modules(folder)
            continue
        for inner in entries(folder):
            if inner.is_symlink() and of_head(inner, top, tree):
                yield inner.name.partition(".")[0]


def by_finders() -> Iterator[str]:
    """From the finders of editable installs: of setuptools, scikit-build-core and meson-python."""
    for finder in sys.meta_path:
        finder_type = finder if isinstance(finder, type) else type(finder)
        module = sys.modules.get(finder_type.__module__)
        for kept in (
            getattr(module, "MAPPING", None),
            getattr(module, "NAMESPACES", None),
            getattr(finder, "known_source_files", None),
            getattr(finder, "_top_level_modules", None),
        ):
            if isinstance(kept, (dict, set, frozenset, list, tuple)):
                for name in kept:
                    yield str(name).partition(".")[0]


def by_records(top: Path, tree: Path) -> Iterator[str]:
    """From what installers write down (direct_url.json)."""
    for distribution in importlib.metadata.distributions():
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            origin_dir = unquote(str(origin.get("url", "")).replace("file://", "", 1))
            if not origin.get("dir_info", {}).get("editable") or not of_head(Path(origin_dir), top, tree):
                continue
            names = distribution.read_text("top_level.txt") or str(distribution.metadata["Name"])
        except Exception:  # noqa: BLE001 - a broken package of the user's is not the question
            continue
        yield from names.replace("-", "_").split()


def place_of(name: str) -> Path | None:
    """The folder that a module would be found in."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - a finder of the user's environment may raise anything
        return None
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        folder = Path(spec.origin).resolve().parent
        return folder.parent if spec.submodule_search_locations is not None else folder
    locations = list(spec.submodule_search_locations or [])
    return Path(locations[0]).resolve().parent if locations else None


def main() -> None:
    top, tree, first = (Path(path).resolve() for path in sys.argv[1:4])
    names = {*by_paths(top, tree), *by_finders(), *by_records(top, tree)}
    if sys.path and sys.path[0] == "":  # what -c puts there; the command's script has its own folder
        sys.path[0] = str(first)
    origins = {}
    for name in sorted(names)[:MOST_NAMES]:
        origin_dir = place_of(name)
        if origin_dir is not None and of_head(origin_dir / name, top, tree):
            origins[name] = str(origin_dir)
    print("\n" + json.dumps(origins))


if __name__ == "__main__":
    main()
