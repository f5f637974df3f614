"""Comparisons that say nothing: of disturbed runs, or with efficiencies that ranks cannot bring."""

from __future__ import annotations

import pytest

from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import RunEntry, ScalingSeries
from perfscope.reports.model import Table
from perfscope.reports.study.build import build_study_report
from perfscope.reports.text import render_text
from perfscope.vocabulary.comparison import CannotTell
from tests.support.study_entries import entry, parts


def runs(speeds: dict[int, float], disturbed: tuple[int, ...] = ()) -> list[RunEntry]:
    return [
        entry(f"p{ranks}", ranks=ranks, speed=speed, clean=ranks not in disturbed)
        for ranks, speed in speeds.items()
    ]


def series(entries: list[RunEntry]) -> ScalingSeries:
    study = analyze_study(entries, by="world_size")
    assert study.scaling is not None
    (only,) = study.scaling.series
    return only


@pytest.mark.parametrize(
    ("speeds", "disturbed", "why"),
    [
        ({1: 100, 2: 190, 4: 350}, (), None),
        ({1: 100, 2: 205, 4: 350}, (), None),
        ({1: 100, 2: 211, 4: 350}, (), CannotTell.IMPOSSIBLE_EFFICIENCY),
        ({1: 100, 2: 1800}, (), CannotTell.IMPOSSIBLE_EFFICIENCY),
        ({1: 100, 2: 190, 4: 350}, (1,), CannotTell.REFERENCE_DISTURBED),
        ({1: 100, 2: 190, 4: 350}, (2,), None),
        ({1: 100, 2: 190, 4: 350}, (4,), CannotTell.RUNS_DISTURBED),
    ],
)
def test_what_says_nothing_is_not_the_headline(
    speeds: dict[int, float], disturbed: tuple[int, ...], why: CannotTell | None
) -> None:
    entries = runs(speeds, disturbed)
    found, study = series(entries), analyze_study(entries, by="world_size")
    assert found.cannot_tell is why
    assert study.headline == found.sentence
    assert found.sentence.startswith("Cannot tell: ") == (why is not None)
    assert "times as fast as 1 rank" in found.sentence  # what was measured is not hidden
    report = build_study_report(study)
    assert report.verdict.headline.startswith("Cannot tell") == (why is not None)
    assert (report.verdict.tone == "caution") == (why is not None)
    tiles = {figure.id: figure.value for figure in report.figures}
    if len(speeds) > 2:  # of two runs they are of the difference
        assert (tiles["efficiency"] == "?" and tiles["speedup"] == "?") == (why is not None)


def marked(entries: list[RunEntry]) -> list[str]:
    """The tones of all cells of the tables of scaling."""
    report = build_study_report(analyze_study(entries, by="world_size"))
    tables = [block for section in report.sections for block in section.blocks if isinstance(block, Table)]
    return [tone for table in tables if "scaling" in table.id for row in table.heat for tone in row if tone]


def test_no_cell_of_such_a_series_has_a_color_or_a_tick() -> None:
    assert marked(runs({1: 100, 2: 190}))
    assert not marked(runs({1: 100, 2: 190}, disturbed=(1,)))
    assert not marked(runs({1: 100, 2: 1800}))


def test_one_run_of_several_that_was_disturbed_leaves_the_median_standing() -> None:
    entries = [entry(f"r{k}", ranks=1, speed=100, clean=k > 0) for k in range(3)]
    assert series([*entries, entry("p2", ranks=2, speed=180)]).cannot_tell is None


def test_a_part_saves_no_more_than_the_step() -> None:
    entries = [
        entry("p1", ranks=1, speed=100, breakdown=parts(1000, exposed=0.9)),
        entry("p2", ranks=2, speed=190, breakdown=parts(100, exposed=0.0)),
    ]
    grew = series(entries).what_grew
    assert min(growth.excess_share or 0 for growth in grew) >= -1
    assert all(abs(growth.excess_share or 0) <= 1 for growth in grew)


def test_a_disturbed_run_of_two_says_nothing_of_the_difference() -> None:
    entries = [entry("a", speed=100), entry("b", speed=150, clean=False)]
    diff = analyze_study(entries).diff
    assert diff is not None and diff.cannot_tell is CannotTell.RUNS_DISTURBED
    assert diff.headline.startswith("Cannot tell: the runs were disturbed")
    assert "Cannot tell: the runs were disturbed" in render_text(build_study_report(analyze_study(entries)))
    clean = analyze_study([entry("a", speed=100), entry("b", speed=150)]).diff
    assert clean is not None and clean.cannot_tell is None and not clean.headline.startswith("Cannot")


def test_the_fastest_of_settings_whose_runs_were_all_disturbed_is_not_known() -> None:
    entries = [
        entry("a", scheme="dp.ddp", ranks=2, speed=100, clean=False),
        entry("b", scheme="dp.ring", ranks=2, speed=150),
        entry("c", scheme="dp.ps", ranks=2, speed=50),
    ]
    study = analyze_study(entries)
    (schemes,) = study.schemes
    assert schemes.verdict is not None and schemes.verdict.cannot_tell is CannotTell.RUNS_DISTURBED
    assert schemes.verdict.headline.startswith("Cannot tell: ")
    report = build_study_report(study, dict.fromkeys(("a", "b", "c"), 0))
    fastest = next(figure for figure in report.figures if figure.id == "winner")
    assert fastest.value == "?" and fastest.note.startswith("measured fastest: dp.ring, 150")
    assert not any(figure.id == "lead" for figure in report.figures)


@pytest.mark.parametrize(
    ("speeds", "doubt"),
    [
        (([100.0], [120.0]), CannotTell.ONE_RUN_EACH),  # single runs of one setting are as far apart
        (([100.0], [140.0]), None),
        (([100.0, 101.0, 99.0], [120.0, 121.0, 119.0]), None),
    ],
)
def test_a_small_lead_of_single_runs_names_no_winner(
    speeds: tuple[list[float], list[float]], doubt: CannotTell | None
) -> None:
    entries = [
        entry(f"{scheme}{number}", scheme=scheme, ranks=2, speed=speed)
        for scheme, values in zip(("dp.ddp", "dp.ring"), speeds, strict=True)
        for number, speed in enumerate(values)
    ]
    (schemes,) = analyze_study(entries).schemes
    assert schemes.verdict is not None and schemes.verdict.cannot_tell is doubt
    if doubt is not None:
        assert schemes.verdict.headline == (
            "Cannot tell: of the fastest two one has a single run, and runs of one setting may be as far "
            "apart. Measured: dp.ring processed the most samples: 120 against 100 samples/s, 20 % faster "
            "than dp.ddp (no repeats, noise unknown)."
        )
        assert schemes.verdict.action.startswith("Repeat dp.ring and dp.ddp three times each")
