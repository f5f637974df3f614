"""Which code Python imports in a checkout: PYTHONPATH and editable installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.checkout.editable_check import interpreter, own_imports
from perfscope.checkout.worktree import checked_out
from tests.support.worktree_project import Project, project, pytestmark, run

__all__ = ["project", "pytestmark"]


# Whose packages are imported.


@pytest.fixture
def packaged(project: Project) -> Project:
    """src/mine says `old` in the first of two commits; bin/go.py prints what it says."""
    project.write("src/mine/__init__.py", "WORD = 'old'")
    project.write("bin/go.py", "import mine; print(mine.WORD)")
    project.commit("a package")
    project.write("src/mine/__init__.py", "WORD = 'new'")
    project.commit("a newer package")
    return project


def environment_with(project: Project, tmp_path: Path, **files: str) -> str:
    """A virtual environment with these files in its site-packages; its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for name, text in files.items():
        (site / name.replace("__dot__", ".")).write_text(text)
    return str(tmp_path / "env" / "bin" / "python")


def test_pythonpath_leads_into_the_checkout(packaged: Project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    packaged.write(".git/info/exclude", "vendored/\n")
    vendored = packaged.write("vendored/x.py", "").parent
    path = [str(packaged.top / "src"), "src", str(tmp_path / "outside"), "../outside", str(vendored), ""]
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        changed = base.environment({"PYTHONPATH": os.pathsep.join(path), "PWD": str(packaged.top)})
        there, outside = str(base.path / "src"), str(tmp_path / "outside")
        assert changed["PYTHONPATH"].split(os.pathsep) == [there, there, outside, outside, str(vendored), ""]
        assert changed["PWD"] == str(base.folder)
        variables = {"PYTHONPATH": path[0]}
        assert run(base, sys.executable, "bin/go.py", environment=variables) == "old"


def test_an_editable_install_by_path_file_does_not_give_the_base_the_heads_code(
    packaged: Project, tmp_path: Path
) -> None:
    python = environment_with(packaged, tmp_path, mine__dot__pth=f"{packaged.top / 'src'}\n")
    words = [python, "bin/go.py"]
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        assert run(base, *words) == "new"  # the trap is real
        imports = own_imports(base, words, packaged.environment)
        assert (imports.redirected, imports.shadowed) == (("mine",), ())
        assert "imports its own mine" in imports.notes[0]
        done = subprocess.run(
            words, cwd=base.folder, env=imports.environment, stdout=subprocess.PIPE, check=True
        )
        assert done.stdout == b"old\n"


FINDER = """
import importlib.util, sys
MAPPING = {"mine": %r}

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name] + "/__init__.py",
                submodule_search_locations=[MAPPING[name]])

def install():
    sys.meta_path.%s
"""


@pytest.mark.parametrize(
    ("place", "redirected", "shadowed"),
    [("append(Finder)", ("mine",), ()), ("insert(0, Finder)", (), ("mine",))],
    ids=["as setuptools does", "before everything else"],
)
def test_an_editable_install_by_finder_is_redirected_or_said(
    packaged: Project, tmp_path: Path, place: str, redirected: tuple[str, ...], shadowed: tuple[str, ...]
) -> None:
    python = environment_with(
        packaged,
        tmp_path,
        mine__dot__pth="import __editable___mine_finder; __editable___mine_finder.install()\n",
        __editable___mine_finder__dot__py=FINDER % (str(packaged.top / "src" / "mine"), place),
    )
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        imports = own_imports(base, ["mpirun", "-n", "2", python, "bin/go.py"], packaged.environment)
    assert (imports.python, imports.redirected, imports.shadowed) == (python, redirected, shadowed)
    if shadowed:
        assert "would compare the head with itself" in imports.notes[0] and "--base-cmd" in imports.notes[0]


def test_packages_beside_the_script_need_nothing(packaged: Project, tmp_path: Path) -> None:
    packaged.write("src/go.py", "import mine; print(mine.WORD)")
    packaged.commit("third")
    python = environment_with(packaged, tmp_path, mine__dot__pth=f"{packaged.top / 'src'}\n")
    with checked_out("HEAD", packaged.top, environment=packaged.environment) as base:
        imports = own_imports(base, [python, "src/go.py"], packaged.environment)
        assert (imports.redirected, imports.shadowed, imports.notes) == ((), (), ())
        assert "PYTHONPATH" not in imports.environment


def test_where_the_interpreter_is_not_known_a_project_that_can_be_installed_is_warned(
    packaged: Project,
) -> None:
    with checked_out("HEAD~1", packaged.top, environment=packaged.environment) as base:
        assert own_imports(base, ["no-such-launcher"], packaged.environment).notes == ()
        packaged.write("pyproject.toml", "")
        for words in (["no-such-launcher"], ["./python", "x.py"]):
            assert "Not checked" in own_imports(base, words, packaged.environment).notes[0]


def test_the_interpreter_is_found_through_scripts_and_launchers(tmp_path: Path) -> None:
    long = tmp_path / "long"
    for name, text in (
        ("torchrun", f"#!{sys.executable}\n"),
        ("long", f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"),
        ("other", "#!/bin/sh\nexec true\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path)}
    assert interpreter(["torchrun", "--standalone", "train.py"], environment, tmp_path) == sys.executable
    assert interpreter(["mpirun", "-n", "2", sys.executable, "x.py"], environment, tmp_path) == sys.executable
    assert interpreter([str(long), "x.py"], environment, tmp_path) == sys.executable
    assert interpreter(["other", "x.py"], environment, tmp_path) == ""
    assert interpreter([], environment, tmp_path) == ""
