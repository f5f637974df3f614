"""Where environments are, and what state they are in. Nothing is made here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.runners.config import BenchError

MARKER = "perfscope-env.json"  # in every environment that perfscope made; nothing without it is touched
LOG = "perfscope-env.log"  # what pip said
CREATING, READY = "creating", "ready"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One environment.

    Attributes:
        name: of its folder.
        path: of its folder.
        framework: it was made for.
        state: CREATING (was not finished) or READY.
        packages: its pins, as they were when it was made.
        versions: of what was installed, by package; {} before it is ready.
        python_version: of its Python.
    """

    name: str
    path: Path
    framework: str
    state: str
    packages: tuple[str, ...]
    versions: Mapping[str, str]
    python_version: str

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.path / "bin" / "python"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "path": str(self.path),
            "python": str(self.python),
            "framework": self.framework,
            "state": self.state,
            "packages": list(self.packages),
            "versions": dict(self.versions),
            "python_version": self.python_version,
        }


def default_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The user's cache directory for environments: XDG_CACHE_HOME/perfscope/envs."""
    environ = os.environ if environment is None else environment
    cache = environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".cache"
    return base / "perfscope" / "envs"


def check_name(name: str) -> None:
    """Raises BenchError where a name cannot be a folder's."""
    if not _NAME.fullmatch(name):
        raise BenchError(
            f"{name!r} cannot be the name of an environment; use letters, digits, `.`, `_` and `-`"
        )


def read_environment(folder: Path) -> Environment | None:
    """The environment in a folder; None where perfscope made none there."""
    try:
        raw = json.loads((folder / MARKER).read_bytes())
        return Environment(
            name=folder.name,
            path=folder,
            framework=str(raw["framework"]),
            state=READY if raw["state"] == READY else CREATING,
            packages=tuple(map(str, raw["packages"])),
            versions={str(name): str(version) for name, version in dict(raw.get("versions") or {}).items()},
            python_version=str(raw.get("python_version") or ""),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_environments(
    environment: Mapping[str, str] | None = None, base: Path | None = None
) -> list[Environment]:
    """Environments in `base` (None: the default place), by name."""
    folder = base or default_dir(environment)
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [environment_ for entry in entries if (environment_ := read_environment(entry)) is not None]


def find_environment(name: str, environment: Mapping[str, str] | None = None) -> Environment | None:
    """An environment by its name in the default place, or by its folder's path."""
    if "/" in name:
        return read_environment(Path(name).absolute())
    return read_environment(default_dir(environment) / name)
