"""What tests of recipes share: a shell with a perfscope that only notes its calls, and the real options."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml  # type: ignore[import-untyped,unused-ignore]

from perfscope.cli.main import cli

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))

FAKE = """#!/bin/bash
# Notes what it was called with, makes the files it was asked for, ends as it was told.
number=$(printf '%03d' "$(ls "$FAKE_CALLS" | wc -l)")
printf '%s\\0' "$@" > "$FAKE_CALLS/$number"
if [ "$1" != check ]; then exit 0; fi
previous=
for word in "$@"; do
  if [ "$FAKE_CODE" != 2 ]; then
    case $word in json=*) touch "${word#json=}" ;; esac
    if [ "$previous" = --junit ]; then touch "$word"; fi
    if [ "$previous" = -o ]; then mkdir -p "$word" && echo boom > "$word/01-head.log"; fi
  fi
  previous=$word
done
exit "$FAKE_CODE"
"""


@dataclass
class Shell:
    """Runs scripts as GitHub's `shell: bash` does, with a perfscope that only notes how it was called."""

    folder: Path
    programs: Path
    outputs: dict[str, str] = field(default_factory=dict)

    def fake(self, name: str, text: str) -> None:
        file = self.programs / name
        file.unlink(missing_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def run(self, script: str, more: Mapping[str, str], code: int = 0) -> subprocess.CompletedProcess[str]:
        file = self.folder / "script.sh"
        file.write_text(script)
        output = self.folder / "output"
        output.write_text("")
        environment = {
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GITHUB_OUTPUT": str(output),
            "RUNNER_TEMP": str(self.folder),
            "FAKE_CALLS": str(self.folder / "calls"),
            "FAKE_CODE": str(code),
            **more,
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)],
            check=False,
            cwd=more.get("IN", self.folder),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = output.read_text().splitlines()
        self.outputs = dict(line.split("=", 1) for line in lines)
        assert len(self.outputs) == len(lines)
        return done

    def calls(self) -> list[list[str]]:
        """Arguments of each call so far."""
        return [file.read_text().split("\0")[:-1] for file in sorted((self.folder / "calls").iterdir())]


def made_shell(folder: Path) -> Shell:
    """A shell that works in a folder below `folder`."""
    made = Shell(folder / "workspace", folder / "programs")
    for place in (made.folder / "calls", made.programs):
        place.mkdir(parents=True)
    made.fake("perfscope", FAKE)
    (made.programs / "python3").symlink_to(sys.executable)
    return made


def scripts(node: object) -> Iterator[str]:
    """Everything in a YAML document that a shell runs."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run":
                yield str(value)
            elif key == "script":
                yield "\n".join(value)
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for item in node:
            yield from scripts(item)


def parsed(words: Sequence[str]) -> Mapping[str, Any]:
    """What the real command makes of its options: one that there is not, or a wrong value, fails."""
    command: click.Command | None = cli
    context = click.Context(cli, info_name="perfscope")
    rest = list(words[1:])
    while isinstance(command, click.Group):
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"there is no `perfscope {name}`"
        if not rest and isinstance(command, click.Group):
            return {}  # the name of a group, in prose
        context = click.Context(command, info_name=name, parent=context)
    assert command is not None
    return command.make_context(words[1], rest, parent=context.parent).params
