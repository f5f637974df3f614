"""Versions and dependencies that are written in more than one file are the same in all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped,unused-ignore]

import perfscope

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pins(file: str) -> dict[str, str]:
    """Version by package of the lines NAME==VERSION."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return {name_of(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==([\w.+]+)", text)}


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == perfscope.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == [one.replace("pytorch", "PyTorch") for one in PROJECT["keywords"]]


def test_hashes_cover_the_runtime_dependencies_at_the_pinned_versions() -> None:
    hashed, pinned = pins("constraints-hashes.txt"), pins("constraints.txt")
    always = {name_of(one) for one in PROJECT["dependencies"] if "python_version" not in one}
    assert always <= set(hashed)
    assert {name: pinned.get(name) for name in hashed} == hashed


def test_every_hashed_package_has_a_hash() -> None:
    text = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8")
    blocks = re.split(r"(?m)^(?=[\w.-]+==)", text)[1:]
    assert len(blocks) >= 10
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_hooks_use_the_pinned_version_of_ruff() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0][
        "hooks"
    ]
    wanted = [f"ruff=={pins('constraints.txt')['ruff']}"]
    assert [hook["additional_dependencies"] for hook in hooks] == [wanted, wanted]


def test_containers_install_what_is_hashed_and_files_that_exist() -> None:
    docker = (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")
    apptainer = (ROOT / "packaging" / "perfscope.def").read_text(encoding="utf-8")
    assert "--require-hashes -r /tmp/constraints-hashes.txt" in docker
    assert "--require-hashes -r /source/constraints-hashes.txt" in apptainer
    assert re.findall(r"FROM (\S+)", docker)[-1] == re.findall(r"(?m)^From: (\S+)", apptainer)[0]
    copied = re.findall(r"(?m)^    (\S+) /source/", apptainer)
    assert len(copied) >= 5
    assert {one for one in copied if one not in docker} == set()


CONDA_NAMES = {"typst-py": "typst"}


def minimum(requirement: str) -> tuple[str, str]:
    """(package, least version) of "NAME>=1,<2; marker" or of conda's "name >=1,<2"."""
    found = re.match(r"([\w.-]+) ?>=([\d.]+)", requirement)
    assert found is not None, requirement
    return name_of(found[1]), found[2]


def test_the_conda_recipe_has_the_dependencies_of_the_project() -> None:
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == perfscope.__version__
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["build"]["python"]["entry_points"] == ["perfscope = " + PROJECT["scripts"]["perfscope"]]
    needed = dict(minimum(line) for line in recipe["requirements"]["run"])
    assert needed.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    needed = {CONDA_NAMES.get(name, name): version for name, version in needed.items()}
    assert needed == dict(minimum(line) for line in PROJECT["dependencies"])


def test_the_spack_recipe_has_the_dependencies_of_the_project() -> None:
    folder = ROOT / "packaging" / "spack" / "packages"
    text = (folder / "py_perfscope_hpc" / "package.py").read_text(encoding="utf-8")
    compile(text, "package.py", "exec")
    assert f'version("{perfscope.__version__}")' in text and f'license("{PROJECT["license"]}")' in text
    always = [line for line in text.splitlines() if "depends_on(" in line and 'when="+' not in line]
    depended = [re.findall(r'depends_on\("([\w-]+)@([\d.]+)', line)[0] for line in always]
    needed = {name.removeprefix("py-"): version for name, version in depended}
    assert (needed.pop("python"), needed.pop("setuptools")) == ("3.10", "77")
    assert needed == dict(minimum(line) for line in PROJECT["dependencies"])
    for name in ("junitparser", "typst"):  # these Spack does not have
        other = (folder / f"py_{name}" / "package.py").read_text(encoding="utf-8")
        compile(other, "package.py", "exec")
        assert f'version("{pins("constraints.txt")[name]}"' in other


def test_the_workflow_calls_what_must_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert [step["run"] for step in workflow["jobs"]["ci"]["steps"] if "run" in step] == ["bash .ci/run"]
