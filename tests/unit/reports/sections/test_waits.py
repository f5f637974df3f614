"""The section that says who was waited for."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.waits.analyze import analyze_waits
from perfscope.analysis.waits.results import WaitAnalysis
from perfscope.reports.model import Note, Section, Table
from perfscope.reports.sections.waits import waits_section
from tests.support.synthetic_lines import Step, play
from tests.support.synthetic_run import SyntheticRun
from tests.unit.analysis.waits.test_waits import MS, WORLD, usual


def report_of(path: Path, waits: WaitAnalysis | None) -> Section | None:
    run = SyntheticRun(path)
    run.rank(0)
    analysis: RunAnalysis = structs.replace(analyze_run(run.read()), waits=waits)
    return waits_section(analysis)


def waits_of(slow: int, layer: str = "conv", *, num_steps: int = 6) -> WaitAnalysis:
    programs: dict[int, list[Step]] = {rank: [usual()] * num_steps for rank in range(4)}
    programs[slow] = [[("compute", layer, "forward", 8 * MS), *usual()]] * num_steps
    played = play(programs, WORLD)
    return analyze_waits(played.lines, played.matches, played.clocks, played.hosts)


def text_of(section: Section) -> str:
    cells = [
        str(cell)
        for block in section.blocks
        for row in (block.rows if isinstance(block, Table) else ())
        for cell in row
    ]
    notes = [block.text for block in section.blocks if isinstance(block, Note)]
    return " ".join([section.lead, *notes, *cells])


def test_the_sentence_names_who_why_and_the_cost(tmp_path: Path) -> None:
    section = report_of(tmp_path, waits_of(2))
    assert section is not None
    assert "6.00 ms" in section.lead  # three of four ranks wait 8 ms
    assert "rank 2 was last in 6 of 6 collectives" in section.lead
    assert (
        "In the most expensive call, rank 2 computed 8.00 ms more than the others, in forward of conv"
        in section.lead
    )
    [note] = [block for block in section.blocks if isinstance(block, Note)]
    assert note.text == "Rank 2 is the straggler in 6 of 6 traced steps, 8.00 ms late per step on average."
    assert note.tone == "caution"


def test_every_figure_of_the_tables_is_the_analysis(tmp_path: Path) -> None:
    waits = waits_of(1)
    section = report_of(tmp_path, waits)
    assert section is not None
    tables = {block.id: block for block in section.blocks if isinstance(block, Table)}
    [row] = tables["waits-table"].rows
    assert row == ("all_reduce", "world", 4, 6, 6 * MS, 5 * MS, 8 * MS, "rank 1 (6 of 6)", None)
    assert [row[:4] for row in tables["stragglers-table"].rows] == [
        (step, 1, "1 of 1", 8 * MS) for step in range(6)
    ]
    assert tables["wait-ranks-table"].rows[0] == (1, 6, 8 * MS, 0, 0)
    assert len(tables["wait-split-table"].rows) == sum(row.group is not None for row in waits.split)
    for table in tables.values():
        assert any(column.primary for column in table.columns)
        assert all(len(one) == len(table.columns) for one in table.rows)


def test_nothing_to_wait_for_is_no_section(tmp_path: Path) -> None:
    assert report_of(tmp_path, None) is None
    assert report_of(tmp_path, WaitAnalysis(num_steps=3)) is None


def test_waits_of_which_nobody_is_to_blame(tmp_path: Path) -> None:
    waits = waits_of(2, num_steps=1)
    nobody = structs.replace(
        waits,
        ranks=tuple(structs.replace(one, num_late=0, held_ns=0) for one in waits.ranks),
        num_uncertain=1,
    )
    section = report_of(tmp_path, nobody)
    assert section is not None
    assert "no rank can be shown to have been late" in section.lead
    assert "In 1 call ranks of other hosts entered closer" in text_of(section)


def test_names_from_the_trace_cannot_repaint_a_terminal(tmp_path: Path) -> None:
    section = report_of(tmp_path, waits_of(2, "evil\x1b[2J\u202e"))
    assert section is not None
    assert "\x1b" not in text_of(section) and "\u202e" not in text_of(section)
