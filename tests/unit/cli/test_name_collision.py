"""A distribution called perfscope that writes over this package is named, others are not."""

import os
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from perfscope import __file__ as our_init
from perfscope.cli.name_collision import collision


def _installed(folder: Path, file: str) -> list[Distribution]:
    info = folder / "perfscope-9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perfscope\nVersion: 9.1\n")
    (info / "RECORD").write_text(f"{file},,\nperfscope-9.1.dist-info/METADATA,,\n")
    return list(distributions(name="perfscope", path=[str(folder)]))


def test_files_written_over_this_package_are_one_line_with_the_remedy(tmp_path: Path) -> None:
    line = collision(_installed(tmp_path, our_init))
    assert line is not None
    assert "perfscope 9.1" in line
    assert "pip uninstall perfscope," in line
    assert "\n" not in line


def test_a_distribution_of_the_name_elsewhere_is_no_collision(tmp_path: Path) -> None:
    assert collision(_installed(tmp_path, "perfscope/__init__.py")) is None


def test_every_command_says_so_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "perfscope").symlink_to(Path(our_init).parent)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "perfscope", "--version"]

    def stderr() -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("perfscope, version ")
        return done.stderr

    assert stderr() == ""
    _installed(tmp_path, "perfscope/__init__.py")
    (line,) = stderr().splitlines()
    assert line.startswith("perfscope: warning: another distribution, perfscope 9.1, ")
