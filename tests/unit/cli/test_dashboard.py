"""`perfscope dashboard`: what the page has, what is read again, and what is not published."""

from __future__ import annotations

import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from click.testing import CliRunner, Result

from perfscope.cli.main import cli
from perfscope.errors import PerfscopeError
from perfscope.rundir import opening
from perfscope.runners.sweep.state import DONE, FAILED, CellState, Run, Study, save_study
from tests.support.site_runs import index_of, write_many, write_run

GPU_RUNS = Path(__file__).parents[2] / "data" / "gpu_runs"


def made(folder: Path, site: Path, *options: str) -> Result:
    arguments = ["dashboard", str(folder), "-o", str(site), *options]
    return CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)


def page_of(site: Path) -> str:
    return (site / "index.html").read_text()


def runs_of(site: Path) -> dict[str, dict[str, Any]]:
    runs = index_of(site)["runs"]
    assert isinstance(runs, list)
    return {run["path"]: run for run in runs}


def test_runs_are_found_at_any_depth_with_what_was_recorded(tmp_path: Path) -> None:
    for name in ("clean", "copy"):
        with tarfile.open(GPU_RUNS / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path / "runs" / "gpu" / name, filter="data")
    result = made(tmp_path / "runs", tmp_path / "site", "--json")
    printed = json.loads(result.stdout)
    assert printed == index_of(tmp_path / "site")
    assert len(printed["runs"]) == 2
    for run in printed["runs"]:
        assert run["path"].startswith("gpu/")
        assert run["step_ns"] > 0 and run["ranks"] > 0 and run["hosts"]
        assert run["framework"] == "torch" and run["name"] in page_of(tmp_path / "site")


def test_a_slower_series_leads_the_page_with_its_commit(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 96, num_series=4)
    made(tmp_path / "runs", tmp_path / "site")
    page = page_of(tmp_path / "site")
    assert "Steps became longer in 1 of 4 series." in page
    assert "from 000000c (" in page  # the first commit of the slower half
    assert 'id="trend-1-step"' in page and 'id="trend-1-rate"' in page
    assert page.index("--model=m1,") < page.index("--model=m0,")


def test_charts_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 12, num_series=4)
    made(tmp_path / "runs", tmp_path / "site", "--charts", "1")
    page = page_of(tmp_path / "site")
    assert 'id="trend-1-step"' in page and 'id="trend-2-step"' not in page
    assert "Charts of 3 other series are not drawn" in page


def test_only_runs_that_changed_are_read_again(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 6, num_series=2)
    site = tmp_path / "site"
    assert "6 runs, 6 of them read" in made(tmp_path / "runs", site).stderr
    assert "6 runs, 0 of them read" in made(tmp_path / "runs", site).stderr
    before = runs_of(site)
    write_run(tmp_path / "runs", "run-0003", day=1, series=1, step_ns=9e7)
    (tmp_path / "runs" / "run-0000" / "run.json").unlink()
    assert "5 runs, 1 of them read" in made(tmp_path / "runs", site).stderr
    after = runs_of(site)
    assert after["run-0003"]["step_ns"] > 1.5 * before["run-0003"]["step_ns"]
    assert after["run-0001"] == before["run-0001"] and "run-0000" not in after
    assert "5 of them read" in made(tmp_path / "runs", site, "--show-users").stderr


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 2, num_series=1)
    made(tmp_path / "runs", tmp_path / "site")
    whole = runs_of(tmp_path / "site")
    (tmp_path / "site" / "index.json").write_text('{"schema_version": 1, "runs": [{"mark"')
    made(tmp_path / "runs", tmp_path / "site")
    assert runs_of(tmp_path / "site") == whole


def test_a_run_that_goes_on_and_one_that_cannot_be_read_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "going", day=0).write(
        "run.json", {"schema_version": 1, "origin": "run", "status": "running"}
    )
    write_run(tmp_path / "runs", "broken", day=0).write("run.json", "{")
    made(tmp_path / "runs", tmp_path / "site")
    found = runs_of(tmp_path / "site")
    assert found["going"]["state"] == "running"
    assert found["broken"]["state"] == "unreadable" and found["broken"]["step_ns"] is None


def test_hostile_names_are_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "javascript:alert(1)", day=0)
    document = json.loads((run.path / "run.json").read_text())
    evil = "</script><img src=x onerror=alert(1)>\u202e'\""
    document.update(name=evil, labels={evil: evil}, command=[evil], git={"commit": evil})
    run.write("run.json", document)
    run.write("derived/verdict.json", {"headline": evil})
    run.write("report.html", "<title>report</title>")
    made(tmp_path / "runs", tmp_path / "runs")  # the site beside the runs: links without leading dots
    page = page_of(tmp_path / "runs")
    assert "<img" not in page and "\u202e" not in page
    assert 'href="javascript' not in page and 'href="./javascript%3A' in page
    assert "default-src 'none'" in page


def test_users_paths_environment_and_secrets_are_not_published(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "ann-run", day=0)
    document = json.loads((run.path / "run.json").read_text())
    document["command"] += ["--out=/scratch/projects/ann/out", "--token", "hunter2hunter2"]
    document["labels"]["by"] = "ann"
    run.write("run.json", document)
    run.write("report.html", "<title>report</title>")
    made(tmp_path / "runs", tmp_path / "site")
    for text in (page_of(tmp_path / "site"), (tmp_path / "site" / "index.json").read_text()):
        for kept_back in ("ann-run", "=ann", "/home/ann", "scratch", "hunter2", "3141", str(tmp_path)):
            assert kept_back not in text, kept_back
        assert "by=USER" in text
    assert "…/train.py" in runs_of(tmp_path / "site")["USER-run"]["command"]
    assert runs_of(tmp_path / "site")["USER-run"]["report"] == ""  # the link would show the name
    made(tmp_path / "runs", tmp_path / "site", "--show-users")
    allowed = runs_of(tmp_path / "site")["ann-run"]
    assert "/home/ann/code/train.py" in allowed["command"] and "hunter2" not in allowed["command"]
    assert (tmp_path / "site" / allowed["report"]).resolve() == run.path / "report.html"


def test_links_that_would_show_where_runs_are_need_copies(tmp_path: Path) -> None:
    run = write_run(tmp_path / "secret-place" / "runs", "one", day=0)
    run.write("report.html", "<title>first</title>")
    site = tmp_path / "public" / "site"
    assert "1 reports are not linked" in made(tmp_path / "secret-place" / "runs", site).stderr
    assert "secret-place" not in page_of(site)
    made(tmp_path / "secret-place" / "runs", site, "--reports", "copy")
    copy = site / runs_of(site)["one"]["report"]
    assert copy.read_text() == "<title>first</title>"
    run.write("report.html", "<title>second</title>")
    os.utime(run.path / "report.html", (time.time() + 10, time.time() + 10))
    made(tmp_path / "secret-place" / "runs", site, "--reports", "copy")
    assert copy.read_text() == "<title>second</title>"
    made(tmp_path / "secret-place" / "runs", site, "--reports", "none")
    assert not copy.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere", "one", day=0)
    write_run(tmp_path / "runs", "two", day=0)
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "elsewhere" / "one")
    (tmp_path / "runs" / "two" / "report.html").symlink_to("/etc/hostname")
    made(tmp_path / "runs", tmp_path / "site", "--reports", "copy")
    assert list(runs_of(tmp_path / "site")) == ["two"]
    assert runs_of(tmp_path / "site")["two"]["report"] == ""


def test_studies_are_listed_with_their_runs(tmp_path: Path) -> None:
    study = tmp_path / "runs" / "sweep"
    write_run(study / "runs", "a-r0", day=0)
    cells = [
        CellState(
            name=name,
            scheme="ddp",
            settings={},
            cluster=None,
            digest="",
            runs=[Run(repeat=1, path=f"runs/{name}-r1", status=DONE), Run(repeat=2, path="", status=FAILED)],
            wanted=name == "a",
        )
        for name in ("a", "no-longer-in-the-sweep-file")
    ]
    save_study(Study(title="Two schemes", machine={}, repeats=2, seed=0, cells=cells), study)
    made(tmp_path / "runs", tmp_path / "site")
    assert index_of(tmp_path / "site")["studies"] == [
        {"path": "sweep", "title": "Two schemes", "done": 1, "total": 2, "report": ""}
    ]
    assert list(runs_of(tmp_path / "site")) == ["sweep/runs/a-r0"]
    assert "Two schemes" in page_of(tmp_path / "site")


def test_files_that_a_dashboard_did_not_write_are_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one", day=0).write("report.html", "<title>first</title>")
    site = tmp_path / "site"
    made(tmp_path / "runs", site, "--reports", "copy")
    copy = site / runs_of(site)["one"]["report"]
    own = [site / "reports" / name for name in ("quarterly-2026-q3.html", "0123456789abcdef.html")]
    for file in own:
        file.write_text("mine")
    made(tmp_path / "runs", site, "--reports", "none")
    assert not copy.exists()
    assert [file.read_text() for file in own] == ["mine", "mine"]


@pytest.mark.parametrize("text", ['{"kind": "search"}', '[{"url": "a.html"}]', "no JSON"])
def test_an_index_of_something_else_is_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(PerfscopeError, match="is not the index of a dashboard"):
        made(tmp_path / "runs", tmp_path)
    assert (tmp_path / "index.json").read_text() == text


def test_copies_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_run(tmp_path / "runs", "one", day=0).write("report.html", "<title>first</title>")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "reports").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PerfscopeError, match="reports is not a directory"):
        made(tmp_path / "runs", tmp_path / "site", "--reports", "copy")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("reports", ["link", "copy"])
def test_names_that_are_not_utf8_are_published_as_escapes(tmp_path: Path, reports: str) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_run(tmp_path / "runs", name, day=0).write("report.html", "<title>first</title>")
    made(tmp_path / "runs", tmp_path / "site", "--reports", reports)
    (run,) = runs_of(tmp_path / "site").values()
    assert run["path"] == "caf\\xe9" and "caf\\xe9" in page_of(tmp_path / "site")
    report = tmp_path / "site" / os.fsdecode(unquote_to_bytes(run["report"]))
    assert report.read_text() == "<title>first</title>"


def test_a_report_that_cannot_be_copied_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening.read_bounded, "__defaults__", (20_000,))
    for name, size in (("small", 10), ("large", 20_001)):
        write_run(tmp_path / "runs", name, day=0).write("report.html", "x" * size)
    result = made(tmp_path / "runs", tmp_path / "site", "--reports", "copy")
    assert "1 report could not be copied; the first:" in result.stderr
    assert "large/report.html" in result.stderr and "20,001 bytes" in result.stderr
    found = runs_of(tmp_path / "site")
    assert found["large"]["report"] == "" and (tmp_path / "site" / found["small"]["report"]).is_file()


def test_an_older_report_replaces_its_copy(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "one", day=0)
    run.write("report.html", "<title>first</title>")
    made(tmp_path / "runs", tmp_path / "site", "--reports", "copy")
    run.write("report.html", "<title>restored</title>")
    os.utime(run.path / "report.html", (1_000_000_000, 1_000_000_000))
    made(tmp_path / "runs", tmp_path / "site", "--reports", "copy")
    copy = tmp_path / "site" / runs_of(tmp_path / "site")["one"]["report"]
    assert copy.read_text() == "<title>restored</title>"


def test_folders_of_arguments_and_labels_are_not_published(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "one", day=0)
    document = json.loads((run.path / "run.json").read_text())
    document["command"] = ["/scratch/My Acme/secret/x.py", "-o/scratch/acme/out", "--steps=3"]
    document["labels"] = {"data": "/scratch/My Acme/set.bin"}
    run.write("run.json", document)
    made(tmp_path / "runs", tmp_path / "site")
    assert runs_of(tmp_path / "site")["one"]["command"] == "…/x.py -o…/out --steps=3"
    assert runs_of(tmp_path / "site")["one"]["labels"] == ["data=…/set.bin"]
    for text in (page_of(tmp_path / "site"), (tmp_path / "site" / "index.json").read_text()):
        assert "acme" not in text.lower()


def test_an_empty_folder_says_how_to_record(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    made(tmp_path / "runs", tmp_path / "site")
    assert "There are no runs here." in page_of(tmp_path / "site")


def test_a_page_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "index.html").write_text("<title>mine</title>")
    with pytest.raises(PerfscopeError, match="--output"):
        made(tmp_path / "runs", tmp_path)
    assert page_of(tmp_path) == "<title>mine</title>"
    with pytest.raises(PerfscopeError, match="no directory"):
        made(tmp_path / "nowhere", tmp_path / "site")


def test_a_thousand_runs_are_one_page_of_bounded_size(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 1000)
    begin = time.process_time()
    made(tmp_path / "runs", tmp_path / "site")
    first = time.process_time() - begin
    begin = time.process_time()
    assert "1,000 runs, 0 of them read" in made(tmp_path / "runs", tmp_path / "site").stderr
    assert time.process_time() - begin < first
    assert (tmp_path / "site" / "index.html").stat().st_size < 3_000_000
    assert len(runs_of(tmp_path / "site")) == 1000
