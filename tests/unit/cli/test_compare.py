"""`perfscope compare` on real run directories: what is read, said, written and refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.cli.compare import command, find_runs
from perfscope.errors import PerfscopeError, RunDirectoryError, UsageError
from tests.support.synthetic_run import SyntheticRun
from tests.unit.cli.test_report import perfscope

MS = 1_000_000


def recorded(path: Path, world_size: int, step_ms: float, **manifest: Any) -> Path:
    """A run of `world_size` ranks, 64 samples a step whatever the ranks."""
    run = SyntheticRun(
        path,
        name=path.name,
        expected_ranks=world_size,
        attached_ranks=world_size,
        exit={"code": 0, "signal": None},
        start_unix_ns=1_780_000_000_000_000_000,
        **{"options": {"samples_per_step": 64}, **manifest},
    )
    for rank in range(world_size):
        run.rank(rank, world_size=world_size)
        run.steps(rank, [round(step_ms * MS)] * 30)
    return path


@pytest.fixture
def scaling(tmp_path: Path) -> list[Path]:
    return [recorded(tmp_path / f"n{count}", count, ms) for count, ms in ((1, 100.0), (2, 60.0), (4, 40.0))]


def compare(*words: object) -> Any:
    """In this process; errors are raised."""
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_scaling_is_told_from_run_directories(scaling: list[Path]) -> None:
    done = compare(*scaling, "--json")
    document = json.loads(done.stdout)
    points = document["scaling"]["series"][0]["points"]
    assert [point["world_size"] for point in points] == [1, 2, 4]
    assert [point["speedup"] for point in points] == pytest.approx([1.0, 100 / 60, 2.5])
    assert document["scaling"]["series"][0]["mode"] == "strong"
    assert {run["start_unix_ns"] for run in document["runs"]} == {1_780_000_000_000_000_000}


def test_two_models_in_one_wrapper_are_refused_by_their_recorded_layers(tmp_path: Path) -> None:
    """No step was traced: what tells them apart is layers.json."""
    runs = []
    for count, params in ((1, 85_114), (2, 4_224_970), (4, 4_224_970)):
        run = recorded(tmp_path / f"n{count}", count, 100.0 / count)
        for rank in range(count):
            root = {"name": "Net", "type": "DistributedDataParallel", "data_parallel": True, "dp_size": count}
            meta = json.loads((run / f"ranks/{rank}/rank.json").read_text())
            (run / f"ranks/{rank}/rank.json").write_text(json.dumps({**meta, "root": root}))
            layers = {"root": "Net", "layers": [{"layer": "fc", "type": "Linear", "params": params}]}
            (run / f"ranks/{rank}/layers.json").write_text(json.dumps(layers))
        runs.append(run)
    document = json.loads(compare(*runs, "--json").stdout)
    refused = [one for one in document["problems"] if one["severity"] == "refuse"]
    assert [one["id"] for one in refused] == ["other_model"]
    assert "Net, 4,224,970 parameters (n2 and n4); Net, 85,114 parameters (n1)" in refused[0]["text"]
    assert [point["world_size"] for point in document["scaling"]["series"][0]["points"]] == [2, 4]


def test_two_runs_give_a_diff_and_text_is_the_default(scaling: list[Path]) -> None:
    slower = recorded(scaling[0].parent / "slower", 4, 50.0)
    text = compare(scaling[2], slower).stdout
    assert text.startswith("n4 against slower\n")
    assert "What changed" in text
    assert "40.0 ms → 50.0 ms" in text


def test_runs_of_several_batches_are_compared_where_by_names_them(tmp_path: Path) -> None:
    runs = [
        recorded(
            tmp_path / f"b{batch}", 2, ms, options={"samples_per_step": batch}, labels={"batch": str(batch)}
        )
        for batch, ms in ((16, 40.0), (64, 80.0), (256, 256.0))
    ]
    for by, titles in (
        ("label:batch", ["256", "64", "16"]),
        ("batch", ["batch 256", "batch 64", "batch 16"]),
    ):
        document = json.loads(compare(*runs, "--by", by, "--json").stdout)
        assert [one["id"] for one in document["problems"] if one["severity"] == "refuse"] == []
        assert [row["title"] for row in document["schemes"][0]["rows"]] == titles
        assert "wins" not in document["headline"]
    text = compare(*runs[:2], "--by", "label:batch", "--text").stdout
    assert "are not compared" not in text
    for options in ((), ("--by", "scheme")):  # of a scheme they have none
        problems = json.loads(compare(*runs[:2], *options, "--json").stdout)["problems"]
        (said,) = [one["text"] for one in problems if one["id"] == "other_batch"]
        assert said.endswith("To compare them all the same: --by batch.")


def test_the_order_of_runs_does_not_matter_for_scaling(scaling: list[Path]) -> None:
    forward, backward = (compare(*runs, "--json").stdout for runs in (scaling, scaling[::-1]))
    assert json.loads(forward)["scaling"] == json.loads(backward)["scaling"]


def test_an_unreadable_run_is_one_line_and_the_rest_go_on(scaling: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    done = compare(*scaling, tmp_path / "broken", tmp_path / "nowhere", "--json")
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"perfscope: {tmp_path / 'broken'}: left out, ")
    assert lines[1].startswith(f"perfscope: {tmp_path / 'nowhere'}: left out, ")
    assert len(json.loads(done.stdout)["runs"]) == 3


@pytest.mark.parametrize(
    ("readable", "named", "words"),
    [
        (1, 1, "only one run was named"),
        (1, 2, "only one of 2 runs can be read"),
        (0, 2, "none of the runs can be read"),
    ],
)
def test_fewer_than_two_runs_are_refused(
    scaling: list[Path], tmp_path: Path, readable: int, named: int, words: str
) -> None:
    runs = scaling[:readable] + [tmp_path / f"gone{n}" for n in range(named - readable)]
    with pytest.raises(RunDirectoryError, match=words):
        compare(*runs)


def test_the_same_run_named_twice_is_one_run(scaling: list[Path]) -> None:
    with pytest.raises(RunDirectoryError, match="only one"):
        compare(scaling[0], scaling[0].parent / "." / "n1")


def test_words_that_are_not_known_are_refused_before_anything_is_read(scaling: list[Path]) -> None:
    with pytest.raises(UsageError, match="--by 'ranks' is not known"):
        compare(*scaling, "--by", "ranks")
    with pytest.raises(UsageError, match="none of the runs named"):
        compare(*scaling, "--reference", "n8")
    with pytest.raises(UsageError, match="cannot write to stdout"):
        compare(*scaling, "--html", "-")


def test_the_reference_may_be_named_by_path_or_name(scaling: list[Path]) -> None:
    for name in (scaling[1], "n2"):
        document = json.loads(compare(*scaling, "--reference", name, "--json").stdout)
        assert document["scaling"]["series"][0]["reference_world_size"] == 2


def study_of(folder: Path, runs: dict[str, str]) -> Path:
    """A study of `perfscope bench sweep`: name of a run -> its status."""
    cells: list[dict[str, Any]] = [
        {
            "name": name,
            "scheme": "dp.ddp",
            "settings": {},
            "cluster": None,
            "digest": "0",
            "runs": [{"repeat": 1, "path": f"runs/{name}", "status": status, "error": "it hung"}],
        }
        for name, status in runs.items()
    ]
    document = {
        "schema_version": 1,
        "title": "t",
        "machine": {},
        "repeats": 1,
        "seed": 0,
        "sentences": [],
        "cells": cells,
    }
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(document))
    return folder


def test_a_study_stands_for_the_runs_it_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of(tmp_path / "study", {"n1": "done", "n2": "done", "n4": "failed", "n8": "pending"})
    lost: list[tuple[str, str]] = []
    found = find_runs([study], lost)
    assert [place.path for place in found] == [study / "runs" / "n1", study / "runs" / "n2"]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[2] for line in told] == ["left out, failed", "left out, pending"]
    assert lost == [
        (str(study / "runs" / "n4"), "failed: it hung"),
        (str(study / "runs" / "n8"), "pending: it hung"),
    ]


def test_runs_that_cannot_be_read_are_in_every_output(scaling: list[Path], tmp_path: Path) -> None:
    done = compare(*scaling, tmp_path / "gone", "--json", "--text")
    document = json.loads(done.stdout)
    assert any(str(tmp_path / "gone") in one["what"] for one in document["missing"])
    (said,) = (one for one in document["problems"] if one["id"] == "left_out")
    assert said["severity"] == "warn"
    assert "1 run that was named is not in this study" in done.stderr


def test_two_runs_of_other_batches_print_no_ratio(tmp_path: Path) -> None:
    runs = [
        recorded(tmp_path / name, 2, ms, options={"samples_per_step": batch})
        for name, ms, batch in (("a", 100.0, 64), ("b", 55.0, 32))
    ]
    shown = compare(*runs).stdout
    assert "a and b are not compared: their batches differ." in shown
    assert not any(word in shown for word in ("faster", "slower", "as many", "After / before", "45.0 %"))


def test_a_run_named_by_a_link_has_the_name_of_its_directory(tmp_path: Path) -> None:
    recorded(tmp_path / "a", 1, 100.0)
    (tmp_path / "latest").symlink_to("a")
    [place] = find_runs([tmp_path / "latest"], [])
    assert place.name == str(tmp_path / "a")


def test_a_damaged_study_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(RunDirectoryError, match=r"study\.json is damaged"):
        find_runs([tmp_path], [])


def test_a_folder_takes_all_three_files(scaling: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    done = compare(*scaling, "-o", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["compare.html", "compare.json", "compare.pdf"]
    assert (folder / "compare.pdf").read_bytes().startswith(b"%PDF-")
    assert json.loads((folder / "compare.json").read_text())["kind"] == "study"
    assert "How it scales" in done.stdout


def test_a_folder_that_cannot_be_made_is_one_line(scaling: list[Path]) -> None:
    with pytest.raises(PerfscopeError, match="cannot be made"):
        compare(*scaling, "-o", scaling[0] / "run.json" / "x")


def test_hostile_directory_names_reach_no_terminal(tmp_path: Path) -> None:
    names = ("a\x1b[31m", "b\u202e")
    runs = [recorded(tmp_path / name, 2, 10.0 + at) for at, name in enumerate(names)]
    (tmp_path / "c\x1b]0;x\x07").mkdir()
    done = compare(*runs, tmp_path / "c\x1b]0;x\x07")
    for text in (done.stdout, done.stderr):
        assert not any(sign in text for sign in ("\x1b", "\u202e", "\x07"))


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from perfscope.cli.compare import command; "
        "heavy = {'numpy', 'pyarrow', 'matplotlib', 'typst', 'jinja2', 'torch'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_json_stays_alone_on_stdout(scaling: list[Path]) -> None:
    done = perfscope("compare", *scaling, "--json", "--text")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema_version"] == 1
    assert "How it scales" in done.stderr
