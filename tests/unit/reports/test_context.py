"""Who, where and when, and memory: on the first screen and the first page."""

from __future__ import annotations

from msgspec import structs

from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.pdf import pdf_data
from tests.support.records import run_record
from tests.unit.reports.test_synthetic import synthetic_analysis

START_UNIX_NS = 1_795_000_000 * 10**9


def test_ranks_versions_batch_date_and_commit_are_below_the_title() -> None:
    document = {
        "name": "demo", "world_size": 4, "start_unix_ns": START_UNIX_NS, "packages": {"torch": "2.13.0"},
        "git": {"commit": "4f05660aaaaaaaa", "dirty": True},
    }  # fmt: skip
    analysis = structs.replace(synthetic_analysis(), run=run_record(document), samples_per_step=128.0)
    report = build_report(analysis, None)
    expected = ["4 ranks on node01", "torch 2.13.0", "batch 128", "2026-11-18 11:06 UTC", "commit 4f05660+"]
    assert [part for part in report.context if part in expected] == expected
    line = pdf_data(report)["context"]
    assert isinstance(line, str) and "commit 4f05660" in line
    before, _, _ = render_html(report).partition('id="verdict"')
    assert all(part in before for part in expected)


def test_the_rank_that_held_most_memory_has_a_tile() -> None:
    analysis = synthetic_analysis()
    ranks = [structs.replace(rank, peak_rss_bytes=(rank.rank % 3 + 1) << 30) for rank in analysis.ranks]
    report = build_report(structs.replace(analysis, ranks=tuple(ranks)), None)
    (tile,) = [figure for figure in report.figures if figure.id == "memory"]
    assert (tile.value, tile.note) == ("3.00 GiB", "of the process, rank 2 of 4")
    on_device = tuple(structs.replace(rank, peak_device_bytes=5 << 30) for rank in ranks)
    report = build_report(structs.replace(analysis, ranks=on_device), None)
    (tile,) = [figure for figure in report.figures if figure.id == "memory"]
    assert (tile.title, tile.value) == ("Peak device memory", "5.00 GiB")
