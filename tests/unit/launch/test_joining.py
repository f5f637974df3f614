"""Several launchers in one run directory, named by PERFSCOPE_RUN_DIR."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfscope.errors import RunDirectoryError
from perfscope.launch.joining import announce, expected_ranks, newest, open_shared


def write_manifest(directory: Path, **fields: object) -> None:
    directory.mkdir(exist_ok=True)
    manifest = {"schema_version": 1, "perfscope_version": "0", "status": "running", **fields}
    (directory / "run.json").write_text(json.dumps(manifest))


def test_first_launcher_owns_the_run_and_the_others_join(tmp_path: Path) -> None:
    shared = tmp_path / "a" / "run"
    assert open_shared(shared) == (shared, False)
    assert open_shared(shared) == (shared, True)


def test_of_launchers_that_start_together_exactly_one_owns_the_run(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        joined = list(pool.map(lambda _: open_shared(tmp_path / "run")[1], range(8)))
    assert sorted(joined) == [False] + [True] * 7


def test_a_run_made_with_output_option_can_be_joined(tmp_path: Path) -> None:
    write_manifest(tmp_path / "run")
    assert open_shared(tmp_path / "run") == (tmp_path / "run", True)


def test_a_finished_run_and_foreign_directories_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path / "run", status="finished")
    with pytest.raises(RunDirectoryError, match="finished run"):
        open_shared(tmp_path / "run")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("")
    with pytest.raises(RunDirectoryError, match="not empty"):
        open_shared(tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]
    with pytest.raises(RunDirectoryError, match="absolute"):
        open_shared(Path("relative"))
    with pytest.raises(RunDirectoryError, match="cannot write"):
        open_shared(Path("/proc/none/run"))


def test_joining_ranks_are_added_to_what_is_expected(tmp_path: Path) -> None:
    write_manifest(tmp_path, expected_ranks=2)
    announce(tmp_path, 3)
    announce(tmp_path, None)
    manifest = newest(tmp_path, {})
    assert manifest["expected_ranks"] == 5
    assert expected_ranks(manifest, 3, None) == 5


def test_unknown_expectation_falls_back_to_what_ranks_report(tmp_path: Path) -> None:
    write_manifest(tmp_path, expected_ranks=None)
    announce(tmp_path, 3)
    assert newest(tmp_path, {})["expected_ranks"] is None
    assert expected_ranks({}, None, 4) == 4
    assert expected_ranks({}, 2, 4) == 2
    assert newest(tmp_path / "gone", {"own": 1}) == {"own": 1}
