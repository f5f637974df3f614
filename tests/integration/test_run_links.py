"""No command follows a symbolic link inside a run directory, for writing or for reading outside of it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, user_environment
from tests.support.ingest_traces import GLOO


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two imported ranks, never to be changed."""
    folder = tmp_path_factory.mktemp("recorded")
    traces = [str(GLOO / f"rank{rank}.json.gz") for rank in range(2)]
    done = perfscope("import", *traces, "-o", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def perfscope(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFSCOPE, *words],
        cwd=cwd,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def copy_of(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def listed(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_results_replace_links_and_leave_what_they_lead_to(recorded: Path, tmp_path: Path) -> None:
    run = copy_of(recorded, tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    names = ("report.html", "report.pdf", "timeline.csv")
    for name in names:
        (outside / name).write_text("mine")
        (run / name).symlink_to(outside / name)
    done = perfscope("report", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = perfscope("export", "run", "--format", "csv", "--force", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(names, "mine")
    assert all(stat.S_ISREG((run / name).lstat().st_mode) for name in names)
    assert (run / "report.html").read_bytes().startswith(b"<!")


def test_a_link_that_the_user_names_as_output_is_followed(recorded: Path, tmp_path: Path) -> None:
    run = copy_of(recorded, tmp_path)
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    done = perfscope("report", str(run), "--html", "link.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_bytes().startswith(b"<!")


# What becomes a link, relative to the run; a folder of that name is moved outside and linked to.
LINKED = (
    "derived",
    "derived/timeline",
    "derived/ingest",
    "ranks",
    "ranks/0",
    "ranks/0/rank.json",
    "ranks/0/windows",
    "ranks/0/windows/0.json.gz",
    "run.json",
)
COMMANDS = {
    "report": ("report", "run"),
    "export": ("export", "run", "--format", "perfetto"),
    "compare": ("compare", "run", "fine"),
    "collect": ("collect", "run", "-o", "collected"),
    "baseline": ("baseline", "update", "b.json", "run"),
}


@pytest.mark.parametrize("name", LINKED)
def test_a_link_among_what_is_read_is_one_line(recorded: Path, tmp_path: Path, name: str) -> None:
    run = copy_of(recorded, tmp_path)
    shutil.copytree(recorded, tmp_path / "fine")
    outside = tmp_path / "outside"
    (run / name).rename(outside)
    (run / name).symlink_to(outside)
    if outside.is_dir():  # stale or empty, so that there is something to be written
        for path in outside.glob("*.parquet"):
            path.unlink()
    before = listed(outside) if outside.is_dir() else outside.read_bytes()
    command = list(COMMANDS)[LINKED.index(name) % len(COMMANDS)]  # all of them would be 45 processes
    for words in (COMMANDS["report"], COMMANDS[command]):
        done = perfscope(*words, cwd=tmp_path)
        lines = done.stderr.splitlines()
        assert done.returncode in (1, 4), (words, done.stdout, done.stderr)
        assert any(f"{run / name} is a symbolic link" in line for line in lines), lines
        assert not any("internal error" in line or "Traceback" in line for line in lines)
    assert (listed(outside) if outside.is_dir() else outside.read_bytes()) == before


def test_what_a_link_leads_to_is_not_collected(recorded: Path, tmp_path: Path) -> None:
    run = copy_of(recorded, tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "id_rsa").write_text("secret")
    (run / "ranks" / "2").symlink_to(tmp_path / "secrets")
    done = perfscope("collect", "run", "-o", "collected", cwd=tmp_path)
    assert done.returncode == 1
    assert "ranks/2 is a symbolic link" in done.stderr
    assert not list(tmp_path.glob("collected/**/id_rsa"))


def test_the_run_itself_may_be_named_by_a_link(recorded: Path, tmp_path: Path) -> None:
    run = copy_of(recorded, tmp_path)
    (tmp_path / "latest").symlink_to(run)
    done = perfscope("report", "latest", "--html", "out.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_that_cannot_be_written_to_is_read_all_the_same(recorded: Path, tmp_path: Path) -> None:
    run = copy_of(recorded, tmp_path)
    shutil.rmtree(run / "derived")
    run.chmod(0o555)
    try:
        done = perfscope("report", "run", "--text", cwd=tmp_path)
    finally:
        run.chmod(0o755)
    assert done.returncode == 0, done.stderr
