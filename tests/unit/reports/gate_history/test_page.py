"""The report of a history: one model for HTML, PDF, text and JSON, and `perfscope history` that prints it."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from perfscope.cli.history import FEWEST_NEWEST, NEWEST, command
from perfscope.errors import PerfscopeError, UsageError
from perfscope.gate import trend as trend_module
from perfscope.gate.changepoints import MIN_SEGMENT
from perfscope.gate.records import RunFigures
from perfscope.gate.store import open_store
from perfscope.gate.trend import Trend
from perfscope.reports import html as html_module
from perfscope.reports.document import render_json
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.history import history_payload
from perfscope.reports.drawing.page import figure_html
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.gate_history import layout
from perfscope.reports.gate_history.build import build_history_report
from perfscope.reports.gate_history.chart import Break, HistoryChart, Level, RunPoint
from perfscope.reports.html import render_html, script_text
from perfscope.reports.model import Report, Table, Unit
from perfscope.reports.pdf import render_pdf
from perfscope.reports.text import render_text
from tests.support.pdf_sections import section_titles
from tests.unit.cli.test_compare import recorded
from tests.unit.cli.test_report import perfscope
from tests.unit.gate.test_trend import made_history, of, slower
from tests.unit.reports.test_html import HOSTILE, Page


def report_of(*series: Sequence[RunFigures]) -> Report:
    return build_history_report([of(runs) for runs in series], "history.sqlite")


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """Most of a page's time goes into compiling the templates, which are the same for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html_module, "_environment", functools.cache(html_module._environment))
        yield


@pytest.fixture(scope="module")
def usual() -> Report:
    return report_of(made_history())


@pytest.fixture(scope="module")
def usual_html(usual: Report) -> str:
    return render_html(usual)


@pytest.fixture(scope="module")
def tame() -> Page:
    return Page(render_html(build_history_report([hostile("tame")], "tame")))


def table(report: Report, identity: str) -> Table:
    blocks = [block for section in report.sections for block in section.blocks]
    return next(block for block in blocks if isinstance(block, Table) and block.id == identity)


def chart_of(report: Report) -> HistoryChart:
    chart = report.sections[0].blocks[0]
    assert isinstance(chart, HistoryChart)
    return chart


def of_few_metrics(runs: Sequence[RunFigures]) -> list[RunFigures]:
    """With a chart fewer for each metric that is left out: drawing is what takes time."""
    kept = ("step_p10", "throughput")
    return [dataclasses.replace(run, metrics={name: run.metrics[name] for name in kept}) for run in runs]


def hostile(text: str) -> Trend:
    """A history with `text` wherever a string from outside can stand."""
    runs = []
    for number, run in enumerate(of_few_metrics(made_history(num=12, at=6, by=0.3))):
        side = "old" if number < 6 else "new"
        around = dataclasses.replace(
            run.surroundings,
            commit=text + side,
            hosts=(text + side,),
            kernel=text + side,
            packages={text: side},
            environment={text: text + side},
            command=(text, side),
        )
        spelled = text.replace("\ud800", "?")  # no store keeps half surrogates in what names an entry
        kind = dataclasses.replace(run.fingerprint, cpu=spelled, torch=spelled, gpus=(spelled,))
        runs.append(
            dataclasses.replace(
                run, name=text, surroundings=around, fingerprint=kind, problem=text if number == 3 else ""
            )
        )
    return dataclasses.replace(of(runs), name=text)


def test_the_verdict_names_size_place_date_and_part() -> None:
    report = report_of(made_history(by=0.1))
    assert re.fullmatch(
        r"Step time rose by \d+\.\d\u00a0% between 1a1a1a1 and 1b1b1b1 \(29 Oct 2026\); "
        r"computation of the step moved\.",
        report.verdict.headline,
    )
    assert report.verdict.tone == "caution"
    assert "git log --oneline 1a1a1a1..1b1b1b1" in report.verdict.action
    assert "(26 sessions)" in report.verdict.detail and "(14 sessions)" in report.verdict.detail


def test_a_weighty_difference_comes_before_the_code() -> None:
    runs = [
        dataclasses.replace(
            run, surroundings=dataclasses.replace(run.surroundings, kernel="6.1" if number < 26 else "6.12")
        )
        for number, run in enumerate(made_history())
    ]
    assert "6.1 → 6.12" in report_of(runs).verdict.action


def test_no_change_an_improvement_too_few_and_nothing_are_each_said() -> None:
    same = report_of(made_history(by=0.0)).verdict
    assert same.headline.startswith("No change of step time in 40 sessions: it stays around 26.")
    assert same.tone == "good"
    better = report_of(made_history(by=-0.1)).verdict
    assert better.headline.startswith("Step time fell by ")
    assert better.tone == "good" and not better.action
    few = report_of(made_history(num=6)).verdict
    assert few.headline.endswith("10 sessions are needed, there are 6.")
    assert "perfscope history add" in few.action
    assert report_of().verdict.headline == "There are no runs in this history."


def test_the_series_that_became_worse_leads_and_others_are_noticed() -> None:
    worse, same = made_history(by=0.1), made_history(by=0.0)
    other = [
        dataclasses.replace(run, fingerprint=dataclasses.replace(run.fingerprint, batch=64)) for run in worse
    ]
    assert "rose by" in report_of(same, worse).verdict.headline
    report = report_of(worse, other)
    assert [section.title for section in report.sections] == ["train, batch 32", "train, batch 64"]
    assert len(report.notices) == 1 and report.notices[0].text.startswith("train, batch 64: Step time rose")


def test_tables_tell_changes_causes_and_every_run(usual: Report) -> None:
    report = usual
    (change,) = table(report, "history-1-changes").rows
    assert change[:3] == (27, "29 Oct 2026", "1a1a1a1 → 1b1b1b1")
    assert re.fullmatch(r"\+\d+\.\d\u00a0%, worse", str(change[5]))
    (cause,) = table(report, "history-1-causes").rows
    assert cause[0] == 27 and "omputation" in str(cause[1])
    runs = table(report, "history-1-runs")
    assert [row[0] for row in runs.rows] == list(range(40, 0, -1))
    assert {column.key for column in runs.columns} >= {
        "commit",
        "date",
        "step_p10",
        "step_mean",
        "throughput",
        "clean",
    }


def test_the_chart_has_every_run_its_level_its_parts_and_the_change(usual: Report) -> None:
    report = usual
    chart = chart_of(report)
    assert [point.number for point in chart.points] == list(range(1, 41))
    assert [(level.first, level.last) for level in chart.levels] == [(1, 26), (27, 40)]
    assert [(mark.number, mark.label, mark.is_worse) for mark in chart.breaks] == [(27, "1b1b1b1", True)]
    for point in chart.points:
        assert sum(point.parts) == pytest.approx(point.value)


def test_all_renderers_tell_the_same(usual: Report, usual_html: str) -> None:
    report, html, text = usual, usual_html, render_text(usual)
    page = Page(html)
    assert page.sections == [(section.id, section.title) for section in report.sections]
    assert section_titles(report) == page.sections
    for said in ("1b1b1b1", "29 Oct 2026"):
        assert said in html and said in text
    assert page.counts["circle"] >= 40
    document = json.loads(render_json(report.document))
    assert document["kind"] == "history"
    (series,) = document["series"]
    assert series["latest_is_worse"] is True
    assert series["changes"][0]["commit_after"] == "1b" * 20
    assert len(series["runs"]) == 40
    assert "▲" in text and max(len(line) for line in text.splitlines()) <= 100


def test_the_page_is_one_inert_file(usual_html: str) -> None:
    html = usual_html
    space = "http://www.w3.org/2000/svg"
    bare = html.replace(space, "").replace(script_text(True, False), "")
    bare = re.sub(r"'sha256-[^']+'", "", bare)  # base64 may have two slashes
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", bare)
    assert not re.findall(r"\sstyle=|\son[a-z]+=|@import|url\((?!#)", bare)
    assert "default-src 'none'" in Page(html).csp
    assert len(html) < 400_000


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str, tame: Page) -> None:
    report = build_history_report([hostile(text)], text)
    html = render_html(report)
    page = Page(html)
    assert (page.counts["script"], page.counts["img"], page.counts["style"]) == (2, 0, 1)
    assert page.counts["svg"] == tame.counts["svg"]
    assert {name for _, name, _ in page.attributes} <= {name for _, name, _ in tame.attributes}
    json.loads(page.scripts[0])
    printed = render_text(report)
    printed.encode()
    assert not set(printed) & {"\x1b", "\x07", "\x00", "\u202e", "\u2028", "\u2066"}
    json.loads(render_json(report.document))


def test_the_pdf_is_made_with_hostile_names_too() -> None:
    texts = ("#eval(1) $x$ *b* @cite <label> \\", "</SCRIPT >\u202e\x00" + "x" * 5_000)
    report = build_history_report([hostile(text) for text in texts], texts[0])
    assert len(report.sections) == 2
    assert render_pdf(report).startswith(b"%PDF")


def test_a_run_far_above_the_others_leaves_at_the_top_and_is_told() -> None:
    runs = made_history(by=0.0)
    runs[9] = slower(runs[9], "idle", 60e6)
    chart = chart_of(report_of(runs))
    box = layout.frame(chart)
    assert box.high < 40e6 and box.top < 60e6
    assert [spot.point.number for spot in layout.spots(chart) if spot.above] == [10]
    assert "Above the axis: session 10 at 8" in layout.full_caption(chart)
    assert all(piece.bottom >= 0 and piece.bottom + piece.height <= 100.001 for piece in layout.pieces(chart))


def plain_chart(breaks: Sequence[int], num: int = 100) -> HistoryChart:
    return HistoryChart(
        id="c",
        title="t",
        y_title="y",
        unit=Unit.TIME,
        points=tuple(RunPoint(number=n, value=1e6, label=f"c{n}") for n in range(1, num + 1)),
        levels=(Level(first=1, last=num, value=1e6),),
        breaks=tuple(
            Break(number=n, text="+8.2 %", label=f"c{n}", is_worse=True, rises=True) for n in breaks
        ),
    )


def test_words_of_neighbouring_changes_do_not_cover_each_other() -> None:
    for breaks in ((30, 36, 42, 48), (20, 60), (80, 85, 95), (50, 52, 54, 56, 58, 60)):
        rules = layout.rules(plain_chart(breaks))
        worded = [rule for rule in rules if rule.row is not None]
        assert len(worded) >= min(len(breaks), 3)
        for one in worded:
            for other in worded:
                if one is other or one.row is None or other.row is None:
                    continue
                (begin, end), (start, stop) = one.span, other.span
                assert one.row != other.row or end <= start or stop <= begin
                assert not (start < one.x < stop and one.row <= other.row), "a line through the words"
        assert layout.label_rows(plain_chart(breaks)) <= layout.LABEL_ROWS
        assert "<svg" in paper_svg(lay_out(plain_chart(breaks)))


def test_a_rise_from_zero_points_up() -> None:
    chart = plain_chart([50])
    (rise,) = chart.breaks
    assert rise.arrow == "▲"
    without_share = structs.replace(chart, breaks=(structs.replace(rise, text="from 0"),))
    assert "▲ from 0" in paper_svg(lay_out(without_share))
    fall = structs.replace(chart, breaks=(structs.replace(rise, rises=False),))
    assert "▼ +8.2 %" in paper_svg(lay_out(fall))


def test_the_pointer_reads_every_run(usual: Report) -> None:
    chart = chart_of(usual)
    payload: Any = history_payload(chart)
    first = payload["curves"][0]
    assert len(first["x"]) == len(first["at"]) == len(first["text"]) == 40
    assert first["at"][26] == "27 · 1b1b1b1 · 29 Oct"
    assert {curve["label"] for curve in payload["curves"]} >= {"Computation", "Idle"}


def test_a_long_history_draws_its_newest_runs_and_lists_all() -> None:
    report = report_of(made_history(num=320, at=310, by=0.2))
    chart = chart_of(report)
    assert (chart.points[0].number, chart.points[-1].number) == (21, 320)
    assert chart.levels[0].first == 21
    assert "20 older ones" in chart.caption
    assert len(table(report, "history-1-runs").rows) == 320
    assert len(render_html(report)) < 1_500_000


def history(*words: object) -> Any:
    """In this process; errors are raised."""
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "kept.sqlite"
    open_store(path, create=True).put("train", of_few_metrics(made_history()))
    return path


def test_the_command_prints_and_writes(kept: Path, tmp_path: Path) -> None:
    done = history(kept)
    assert done.exit_code == 0 and "Step time rose by" in done.stdout
    html, pdf = tmp_path / "h.html", tmp_path / "h.pdf"
    done = history(kept, "--html", html, "--pdf", pdf, "--json", "--name", "train", "--metric", "throughput")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["series"][0]["metric"] == "throughput"
    assert html.read_text().startswith("<!doctype html>") and pdf.read_bytes().startswith(b"%PDF")


def test_with_fail_on_change_1_never_means_that_a_file_could_not_be_written(
    kept: Path, tmp_path: Path
) -> None:
    for options, code in ((("--fail-on-change",), 5), ((), 1)):
        with pytest.raises(PerfscopeError) as raised:
            history(kept, *options, "--html", tmp_path / "nowhere" / "h.html")
        assert raised.value.exit_code == code


def test_fail_on_change_gives_1_only_where_a_new_change_is_worse_beyond_the_threshold(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert history(kept, "--fail-on-change", "--json").exit_code == 0  # 14 sessions ago
    failed = history(kept, "--fail-on-change", "--newest", 14, "--json")
    assert failed.exit_code == 1
    assert "perfscope: train: Step time rose by" in failed.stderr
    better = tmp_path / "better.sqlite"
    open_store(better, create=True).put("train", made_history(by=-0.1))
    assert history(better, "--fail-on-change", "--newest", 14, "--json").exit_code == 0
    (tmp_path / "perfscope.toml").write_text('[check.metrics]\nstep_p10 = { threshold = "30%" }\n')
    monkeypatch.chdir(tmp_path)
    assert history(kept, "--fail-on-change", "--newest", 14, "--json").exit_code == 0
    assert history(kept, "--newest", MIN_SEGMENT - 1).exit_code == 2
    assert (FEWEST_NEWEST, NEWEST) == (MIN_SEGMENT, trend_module.NEWEST)  # told without loading numpy


def test_a_change_below_the_threshold_is_shown_and_marked() -> None:
    report = report_of(made_history(by=0.03, spread=0.004))
    assert "below the threshold of 5\u00a0%" in report.verdict.headline
    assert report.verdict.tone == "plain" and not report.verdict.action
    changes = table(report, "history-1-changes")
    assert str(changes.rows[0][5]).endswith("worse, below the threshold")
    assert "A machine with drifting speed shows changes too." in changes.caption


def test_single_runs_lie_faint_around_their_session() -> None:
    """Three runs a session, one of them disturbed."""
    runs = []
    for run in made_history(num=12, at=6, by=0.2):
        start = run.surroundings.start_unix_ns
        assert start is not None
        for place in range(3):
            around = dataclasses.replace(run.surroundings, start_unix_ns=start + place * 60 * 10**9)
            own = slower(run, "idle", (0.0, 1e5, 5e6)[place])
            runs.append(
                dataclasses.replace(own, name=f"{run.name}-{place}", surroundings=around, clean=place < 2)
            )
    report = report_of(runs)
    chart = chart_of(report)
    assert len(chart.points) == 12 and {len(point.runs) for point in chart.points} == {3}
    assert [mark.number for mark in chart.breaks] == [7]
    dots, box = layout.dots(chart), layout.frame(chart)
    assert [dot.doubtful for dot in dots[:3]] == [False, False, True]
    assert dots[0].x < dots[1].x < dots[2].x < box.x(1.5)
    assert dots[1].x == pytest.approx(box.x(1))
    payload: Any = history_payload(chart)
    assert payload["curves"][0]["text"][0].endswith("(median of 2 runs)")
    html = render_html(report)
    assert html.count('<circle class="hs-one') == 36 + 1  # and the legend's
    listed = table(report, "history-1-runs")
    assert [row[:2] for row in listed.rows[:4]] == [(36, 12), (35, 12), (34, 12), (33, 11)]
    (series,) = json.loads(render_json(report.document))["series"]
    assert [one["num_counted"] for one in series["sessions"]] == [2] * 12
    assert [one["session"] for one in series["runs"][:4]] == [0, 0, 0, 1]
    picture = lay_out(chart)
    radius = re.compile(r'<circle[^>]* r="(?:1.6|1.8|3.4|3.6)"')
    assert len(radius.findall(paper_svg(picture))) == len(radius.findall(figure_html(picture))) == 51


def test_what_is_not_there_is_one_line(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no runs of 'x'; it has train$"):
        history(kept, "--name", "x")
    with pytest.raises(UsageError, match="--metric 'speed' is not known; use one of step_p10, "):
        history(kept, "--metric", "speed")
    with pytest.raises(PerfscopeError) as missing:
        history(tmp_path / "none.sqlite")
    assert missing.value.exit_code == 4
    assert len(str(missing.value).splitlines()) == 1


def test_runs_are_added_once_and_then_shown(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / f"run{number}", 2, 30.0 + number) for number in range(2)]
    path = tmp_path / "own.sqlite"
    for _ in range(2):
        assert history("add", path, *runs, "--name", "nightly").exit_code == 0
    document = json.loads(history(path, "--json").stdout)
    assert [(one["name"], len(one["runs"]), one["lacking"]) for one in document["series"]] == [
        ("nightly", 2, 9)
    ]


def test_the_default_file_is_that_of_the_settings(kept: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "perfscope.toml").write_text(f'[check]\nhistory = "{kept}"\n')
    done = perfscope("history", "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"] == str(kept)
    assert f"the history is {kept}" in done.stderr


def test_help_has_examples_and_loads_nothing_heavy() -> None:
    for words in (("--help",), ("add", "--help")):
        shown = history(*words).stdout
        assert "Examples:" in shown and "perfscope history add" in shown
    code = (
        "import sys; from perfscope.cli.history import command; "
        "print(sorted({'numpy', 'pyarrow', 'matplotlib', 'jinja2', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
