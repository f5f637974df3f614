"""action.yml: what it passes on, how it ends, what it refuses; its scripts run as they are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfscope.gate.results import Outcome
from tests.support.ci_shell import ACTION, ROOT, Shell, made_shell, parsed

EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return made_shell(tmp_path)


def step(name: str) -> Mapping[str, Any]:
    (found,) = [one for one in ACTION["runs"]["steps"] if one.get("name") == name]
    assert isinstance(found, dict)
    return found


def run_step(
    shell: Shell, name: str, inputs: Mapping[str, str], more: Mapping[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs a step of the action with these inputs, and with what GitHub puts into its expressions."""
    unknown = set(inputs) - set(ACTION["inputs"])
    assert not unknown
    values = {f"inputs.{key}": str(one.get("default", "")) for key, one in ACTION["inputs"].items()}
    values |= {f"inputs.{key}": value for key, value in inputs.items()}
    values |= {"github.action_path": str(ROOT), "steps.base.outputs.ref": (more or {}).get("REF", "")}
    one = step(name)
    environment = {
        key: EXPRESSION.sub(lambda found: values[found[1]], str(text)) for key, text in one["env"].items()
    }
    return shell.run(one["run"], {**environment, **(more or {})}, code)


def test_the_action_is_made_as_github_wants_it() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert set(ACTION["outputs"]) == {"outcome", "exit-code", "json", "junit"}
    for one in ACTION["runs"]["steps"]:
        assert ("uses" in one) != ("run" in one)
        assert "run" not in one or one["shell"] == "bash"
    used = {
        name for text in map(str, ACTION["runs"]["steps"]) for name in re.findall(r"inputs\.([\w-]+)", text)
    }
    assert used == set(ACTION["inputs"])
    upload = ACTION["runs"]["steps"][-1]
    assert upload["uses"].startswith("actions/upload-artifact@") and "always()" in upload["if"]


OUTCOMES = {one.value: one.word for one in Outcome} | {2: "usage", 70: "error", 130: "error"}


@pytest.mark.parametrize(
    ("code", "strict"),
    [*((code, "false") for code in sorted(OUTCOMES)), (0, "true"), (1, "true"), (3, "true")],
)
def test_the_action_ends_as_the_check_does_but_for_the_inconclusive(
    code: int, strict: str, shell: Shell
) -> None:
    inputs = {"command": "python train.py", "fail-on-inconclusive": strict}
    done = run_step(shell, "Check", inputs, code=code)
    assert done.returncode == (0 if code == 3 and strict == "false" else code)
    assert ("fail-on-inconclusive" in done.stdout) == (code == 3 and strict == "false")
    assert shell.outputs["outcome"] == OUTCOMES[code]
    assert shell.outputs["exit-code"] == str(code)
    made = [shell.outputs["json"], shell.outputs["junit"]]
    if code == 2:
        assert made == ["", ""]
    else:
        assert all(Path(one).is_file() for one in made)
        assert {Path(one).parent for one in made} == {Path(shell.outputs["upload"])}
        assert (Path(shell.outputs["upload"]) / "01-head.log").read_text() == "boom\n"


def test_the_action_passes_its_inputs_on_as_options_that_there_are(shell: Shell) -> None:
    inputs = {
        "command": "torchrun --nproc-per-node 2 train.py\n  --data 'my data'",
        "pairs": "12",
        "threshold": "4%",
        "name": "small cnn",
        "config": "ci/perfscope.toml",
        "extra-args": '--metric peak_memory=error:15% --history "perf history.sqlite"',
        "upload-runs": "true",
    }
    run_step(shell, "Check", inputs, {"REF": "origin/main"})
    (words,) = shell.calls()
    at = words.index("--")
    assert words[at + 1 :] == ["torchrun", "--nproc-per-node", "2", "train.py", "--data", "my data"]
    values = parsed(["perfscope", *words])
    assert (values["base_ref"], values["pairs"], values["threshold"]) == ("origin/main", 12, "4%")
    assert (values["name"], str(values["config"])) == ("small cnn", "ci/perfscope.toml")
    assert str(values["history"]) == "perf history.sqlite"
    assert values["metric_options"] == ("peak_memory=error:15%",)
    assert shell.outputs["upload"] == str(Path(values["output"]).parent)


def test_what_is_not_given_is_left_to_the_configuration(shell: Shell) -> None:
    run_step(shell, "Check", {"command": "python train.py"})
    (words,) = shell.calls()
    given = {word.partition("=")[0] for word in words[: words.index("--")] if word.startswith("-")}
    assert given == {"-o", "--format", "--markdown", "--junit"}


HOSTILE = '$(touch pwned) `touch pwned` ; touch pwned # " --json'


def test_hostile_inputs_stay_one_word(shell: Shell) -> None:
    keys = ("pairs", "threshold", "name", "config")
    run_step(shell, "Check", {"command": "python train.py", **dict.fromkeys(keys, HOSTILE)})
    (words,) = shell.calls()
    assert [f"--{key}={HOSTILE}" in words for key in keys] == [True] * 4
    assert not (shell.folder / "pwned").exists()


def test_nothing_in_the_command_is_expanded_or_run(shell: Shell) -> None:
    (shell.folder / "a.py").touch()
    run_step(shell, "Check", {"command": "python *.py $HOME $(touch pwned) ; touch pwned"})
    (words,) = shell.calls()
    assert words[words.index("--") + 1 :] == [
        *("python", "*.py", "$HOME", "$(touch", "pwned)", ";", "touch", "pwned")
    ]
    assert not (shell.folder / "pwned").exists()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"command": "python 'train.py"}, "::error::command cannot be split into words: check its quotes"),
        (
            {"command": "python", "extra-args": '"'},
            "::error::extra-args cannot be split into words: check its quotes",
        ),
        (
            {"command": "python", "fail-on-inconclusive": "yes"},
            '::error::fail-on-inconclusive and upload-runs must be "true" or "false"',
        ),
    ],
)
def test_inputs_that_cannot_be_are_refused_before_anything_is_measured(
    inputs: dict[str, str], said: str, shell: Shell
) -> None:
    done = run_step(shell, "Check", inputs)
    assert (done.returncode, done.stdout.strip()) == (2, said)
    assert shell.outputs == {"outcome": "usage", "exit-code": "2"}
    assert shell.calls() == []


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [("", str(ROOT)), (".", "."), ("git+https://example.org/p.git@v1", "git+https://example.org/p.git@v1")],
)
def test_the_action_installs_its_own_source_or_what_it_is_told(spec: str, wanted: str, shell: Shell) -> None:
    shell.fake("python3", '#!/bin/bash\nprintf "%s\\0" "$@" > "$FAKE_CALLS/000"\n')
    assert run_step(shell, "Install perfscope", {"install": spec}).returncode == 0
    assert shell.calls() == [["-m", "pip", "install", "--quiet", "--", wanted]]
    assert step("Install perfscope")["if"] == "${{ inputs.install != 'none' }}"


# -- the action's base ----


@dataclass
class Clone:
    """A shallow clone as actions/checkout makes it. `commits`: of the origin's main, oldest first."""

    folder: Path
    commits: list[str]

    def resolve(self, reference: str) -> str:
        return git(self.folder, "rev-parse", f"{reference}^{{commit}}")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    commits = []
    for number in range(3):
        (origin / "train.py").write_text(f"# {number}\n")
        git(origin, "add", ".")
        git(origin, "commit", "-q", "-m", f"number {number}")
        commits.append(git(origin, "rev-parse", "HEAD"))
    git(origin, "tag", "v1", commits[0])
    git(origin, "checkout", "-q", "-b", "change")
    (origin / "train.py").write_text("# change\n")
    git(origin, "commit", "-q", "-a", "-m", "change")
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth=1", "--branch=change", origin.as_uri(), str(folder))
    return Clone(folder, commits)


@pytest.mark.parametrize(
    ("reference", "pull_request", "at"),
    [
        ("", "main", 2),
        ("origin/main", "", 2),
        ("HEAD^1", "", 2),
        ("HEAD~2", "main", 1),
        ("v1", "main", 0),
        ("SHA", "", 1),
    ],
)
def test_the_base_is_fetched_where_a_shallow_clone_lacks_it(
    reference: str, pull_request: str, at: int, clone: Clone, shell: Shell
) -> None:
    wanted = clone.commits[at]
    inputs = {"command": "python", "base-ref": wanted if reference == "SHA" else reference}
    more = {"GITHUB_BASE_REF": pull_request, "IN": str(clone.folder)}
    done = run_step(shell, "Find the base", inputs, more)
    assert done.returncode == 0, done.stderr
    assert clone.resolve(shell.outputs["ref"]) == wanted


def test_a_branch_that_an_earlier_job_fetched_is_fetched_again(clone: Clone, shell: Shell) -> None:
    """As a self-hosted runner has it, which keeps its clone."""
    old = clone.commits[0]
    git(clone.folder, "fetch", "-q", "--depth=1", "origin", "v1")
    git(clone.folder, "update-ref", "refs/remotes/origin/main", old)
    assert clone.resolve("origin/main") == old
    more = {"GITHUB_BASE_REF": "main", "IN": str(clone.folder)}
    assert run_step(shell, "Find the base", {}, more).returncode == 0
    assert shell.outputs == {"ref": "origin/main"} and clone.resolve("origin/main") == clone.commits[2]


def test_a_branch_that_cannot_be_fetched_again_is_taken_as_it_is(clone: Clone, shell: Shell) -> None:
    git(clone.folder, "fetch", "-q", "--depth=1", "origin", "main:refs/remotes/origin/main")
    git(clone.folder, "remote", "set-url", "origin", "file:///nowhere")
    done = run_step(shell, "Find the base", {"base-ref": "origin/main"}, {"IN": str(clone.folder)})
    assert (done.returncode, shell.outputs) == (0, {"ref": "origin/main"})
    assert (
        "::warning::git cannot fetch the base; the check compares with origin/main as it was" in done.stdout
    )


def test_ancestors_of_a_branch_are_fetched_with_it(clone: Clone, shell: Shell) -> None:
    done = run_step(shell, "Find the base", {"base-ref": "origin/main~1"}, {"IN": str(clone.folder)})
    assert (done.returncode, shell.outputs) == (0, {"ref": "origin/main~1"})
    assert clone.resolve("origin/main~1") == clone.commits[1]


def test_a_base_that_is_there_is_not_fetched(clone: Clone, shell: Shell) -> None:
    git(clone.folder, "remote", "set-url", "origin", "file:///nowhere")
    done = run_step(shell, "Find the base", {"base-ref": "HEAD"}, {"IN": str(clone.folder)})
    assert (done.returncode, done.stderr, shell.outputs) == (0, "", {"ref": "HEAD"})


@pytest.mark.parametrize(("reference", "pull_request"), [("none", "main"), ("", "")])
def test_without_a_base_there_is_none(reference: str, pull_request: str, shell: Shell) -> None:
    more = {"GITHUB_BASE_REF": pull_request}
    assert run_step(shell, "Find the base", {"base-ref": reference}, more).returncode == 0
    assert shell.outputs == {"ref": ""}


def test_a_base_that_cannot_be_fetched_is_left_to_perfscope_to_explain(clone: Clone, shell: Shell) -> None:
    more = {"IN": str(clone.folder)}
    done = run_step(shell, "Find the base", {"base-ref": "origin/no-such-branch"}, more)
    assert done.returncode == 0
    assert "::warning::git cannot fetch the base" in done.stdout
    assert shell.outputs == {"ref": "origin/no-such-branch"}


@pytest.mark.parametrize("reference", ["--upload-pack=touch pwned", "-x", "main\nref=evil", "a b"])
def test_hostile_references_are_refused(reference: str, clone: Clone, shell: Shell) -> None:
    done = run_step(shell, "Find the base", {"base-ref": reference}, {"IN": str(clone.folder)})
    assert (done.returncode, shell.outputs) == (2, {})
    assert not (clone.folder / "pwned").exists()


def test_a_branch_named_like_a_command_is_only_a_name(clone: Clone, shell: Shell) -> None:
    hostile = "$(touch${IFS}pwned)"
    more = {"GITHUB_BASE_REF": hostile, "IN": str(clone.folder)}
    assert run_step(shell, "Find the base", {}, more).returncode == 0
    assert shell.outputs == {"ref": f"origin/{hostile}"}
    assert not (clone.folder / "pwned").exists()
