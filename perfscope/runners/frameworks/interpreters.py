"""Which Python trains with a framework: the one that was named, this one, or one of `perfscope bench env`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.runners.config import BenchError
from perfscope.runners.frameworks.envs.pins import find_pins
from perfscope.runners.frameworks.envs.store import READY, Environment, find_environment, list_environments
from perfscope.runners.frameworks.registry import Framework

_ASK_TIMEOUT_S = 60.0
# Runs under the other Python, whatever its version: which modules are there, which distributions.
_QUESTION = """
import json, sys
from importlib.util import find_spec
modules, names = json.loads(sys.argv[1])
found = {}
try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:
    names = []
for name in names:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
missing = []
for name in modules:
    try:
        if find_spec(name) is None:
            missing.append(name)
    except Exception:
        missing.append(name)
print(json.dumps({"python": sys.version.split()[0], "missing": missing, "versions": found}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that has a framework.

    Attributes:
        path: of its executable.
        python: its version.
        version: of the framework; "" where no package says.
    """

    path: str
    python: str
    version: str


def other_release(framework: Framework, version: str) -> str:
    """A sentence where `version` is another release than the program was tried with; "" where it is near it.

    Near is the same first number that is not 0: 2.9 and 2.13 are, 0.4 and 0.10 are not.
    """
    pinned = find_pins(framework.env).version_of(framework.distributions)
    if not version or not pinned or _release(version) == _release(pinned):
        return ""
    return (
        f"{framework.name} {version} is another release than {pinned}, which its program is written for: it "
        "may fail, or train something else"
    )


def _release(version: str) -> tuple[str, ...]:
    """1.9.1 -> (1,), 0.10.2 -> (0, 10)."""
    parts = version.split(".")
    first = next((at for at, part in enumerate(parts) if part != "0"), 0)
    return tuple(parts[: first + 1])


def find_interpreter(
    framework: Framework, python: str | None, env: str | None, environment: Mapping[str, str] | None = None
) -> Interpreter:
    """The Python to train with: `python`, the environment `env`, else this one, else a ready environment.

    Raises:
        BenchError: the named one is none or lacks the framework, or none has it; the line says what to do.
    """
    environ = os.environ if environment is None else environment
    if python is not None and env is not None:
        raise BenchError("--python and --env both name a Python; give one of them")
    if python is not None:
        return _require(framework, _executable(python, environ), f"--python {python}")
    if env is not None:
        environment_ = find_environment(env, environ)
        if environment_ is None:
            names = ", ".join(candidate.name for candidate in list_environments(environ))
            there = f"there are {names}" if names else "there is none yet"
            raise BenchError(
                f"there is no environment {env!r} ({there}); make it: perfscope bench env create {env}"
            )
        if environment_.state != READY:
            raise BenchError(
                f"the environment {env} was not finished; go on with: perfscope bench env create {env}"
            )
        return _require(framework, str(environment_.python), f"--env {env}")
    here, missing = _ask(framework, sys.executable)
    if here is not None:
        return here
    for candidate in _candidates(framework, list_environments(environ)):
        with suppress(BenchError):  # a broken environment is no reason not to look at the next
            elsewhere, _ = _ask(framework, str(candidate.python))
            if elsewhere is not None:
                return elsewhere
    raise BenchError(
        f"{framework.name} is not installed here ({sys.executable} cannot import {', '.join(missing)}) "
        f"nor in an environment of perfscope; make one: perfscope bench env create {framework.env}, "
        "or name a Python that has it with --python"
    )


def _candidates(framework: Framework, environments: Sequence[Environment]) -> list[Environment]:
    """Environments that may have it, the one that was made for it first."""
    ready = [candidate for candidate in environments if candidate.state == READY]
    return sorted(ready, key=lambda candidate: candidate.framework != framework.env)


def _require(framework: Framework, path: str, whose: str) -> Interpreter:
    interpreter, missing = _ask(framework, path)
    if interpreter is None:
        raise BenchError(
            f"{whose}: this Python cannot import {', '.join(missing)}, which --framework {framework.name} "
            f"needs; install it there, or make an environment: perfscope bench env create {framework.env}"
        )
    return interpreter


def _executable(python: str, environment: Mapping[str, str]) -> str:
    executable = shutil.which(python, path=environment.get("PATH", os.defpath))
    if executable is None:
        path = Path(python)
        what = "is a directory; name its bin/python" if path.is_dir() else "cannot be run"
        raise BenchError(f"--python {python} {what}")
    return str(Path(executable).absolute())


def _ask(framework: Framework, path: str) -> tuple[Interpreter | None, list[str]]:
    """The interpreter if it has the framework, else the modules that it lacks."""
    question = json.dumps([framework.modules, framework.distributions])
    try:
        answer = subprocess.run(
            [path, "-c", _QUESTION, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
        answer_facts = json.loads(answer.stdout)
        missing, versions = list(answer_facts["missing"]), dict(answer_facts["versions"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        raise BenchError(f"{path} does not run as a Python; name another with --python") from None
    if missing:
        return None, missing
    version = next((versions[name] for name in framework.distributions if name in versions), "")
    return Interpreter(path=path, python=str(answer_facts["python"]), version=str(version)), []
