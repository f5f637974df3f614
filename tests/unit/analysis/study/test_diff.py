"""Two runs: what changed, largest change first."""

from __future__ import annotations

import pytest
from msgspec import structs

from perfscope.analysis.results import (
    CollectiveResult,
    LayerResult,
)
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import DiffSection, RunDiff, RunEntry
from perfscope.vocabulary.comparison import StudyPart
from tests.support.study_entries import communication, entry, finding, parts

MS = 1_000_000


def diff(before: RunEntry, after: RunEntry, reference: str | None = None) -> RunDiff:
    found = analyze_study([before, after], reference=reference).diff
    assert found is not None
    return found


def section(of: RunDiff, id_: str) -> DiffSection:
    return next(one for one in of.sections if one.id == id_)


def layer(name: str, forward: int, backward: int) -> LayerResult:
    return LayerResult(
        layer=name,
        module_type="Conv2d",
        calls=1,
        forward_ns=forward,
        backward_ns=backward,
        exposed_comm_ns=None,
        flops=None,
        bytes=None,
        order=0,
    )


def collective(name: str, transfer: int | None, size: int, duration: int) -> CollectiveResult:
    return CollectiveResult(
        collective=name,
        group="0",
        group_size=2,
        dtype="float",
        count=4,
        bytes=size,
        duration_ns=duration,
        transfer_ns=transfer,
        wait_ns=None,
        max_wait_ns=None,
        algbw_bytes_per_s=None,
        busbw_bytes_per_s=None,
        busbw_with_wait_bytes_per_s=None,
        late_counts=(),
        num_matched=4,
    )


def test_the_headline_tells_the_speed_and_the_part_that_moved_most() -> None:
    found = diff(
        entry("old", speed=100, breakdown=parts(320, 0.5)), entry("new", speed=125, breakdown=parts(256, 0.1))
    )
    assert found.headline == (
        "new trains 25 % faster than old (100 → 125 samples/s); exposed communication moved most: −134 ms "
        "in a traced step; no repeats, noise unknown."
    )


def test_parts_are_ordered_by_their_change() -> None:
    found = section(
        diff(entry("a", breakdown=parts(100, 0.1)), entry("b", breakdown=parts(130, 0.3))), "parts"
    )
    assert [row.what for row in found.rows] == ["step", "exposed communication", "compute"]
    assert found.rows[1].change == pytest.approx(29 * MS)
    assert found.rows[1].ratio == pytest.approx(3.9)
    assert found.num_same == 4


def test_parts_that_were_not_traced_are_missing_not_zero() -> None:
    found = section(diff(entry("a"), entry("b", traced=False)), "parts")
    assert (found.rows, found.reason) == ((), "no step of b was traced")


def test_layers_are_matched_by_name_and_those_of_one_side_are_marked() -> None:
    before = entry("a", analysis={"layers": (layer("conv1", 5 * MS, 9 * MS), layer("fc", MS, MS))})
    after = entry("b", analysis={"layers": (layer("conv1", 5 * MS, 4 * MS), layer("head", 2 * MS, MS))})
    found = section(diff(before, after), "layers")
    assert [(row.what, row.only) for row in found.rows] == [
        ("conv1, backward", ""),
        ("head, forward", "after"),
        ("fc, forward", "before"),
        ("fc, backward", "before"),
        ("head, backward", "after"),
    ]
    assert found.rows[1].before is None
    assert found.rows[1].change is None
    assert found.num_same == 1


def test_collectives_are_per_step_and_stand_together() -> None:
    """Two traced steps each."""
    before = entry(
        "a",
        analysis={
            "collectives": (
                collective("all_reduce", 8 * MS, 4000, 10 * MS),
                collective("broadcast", MS, 10, MS),
            )
        },
    )
    after = entry(
        "b",
        analysis={
            "collectives": (
                collective("all_reduce", 8 * MS, 4000, 30 * MS),
                collective("broadcast", None, 30, MS),
            )
        },
    )
    found = section(diff(before, after), "collectives")
    told = {row.what: (row.before, row.after) for row in found.rows}
    assert told["all_reduce over 2 ranks: time in calls"] == (5 * MS, 15 * MS)
    assert told["broadcast over 2 ranks: bytes"] == (5, 15)
    assert told["broadcast over 2 ranks: transfer"] == (MS / 2, None)
    assert found.rows[0].what.startswith("all_reduce")  # its calls changed most in time
    assert found.num_same == 5


def test_surroundings_are_compared_as_text() -> None:
    before = entry("a", run={"packages": {"torch": "2.12"}, "environment": {"OMP_NUM_THREADS": "1"}})
    after = entry("b", run={"packages": {"torch": "2.13"}, "options": {"windows": 2}}, cpu="Xeon")
    found = diff(before, after)
    (package,) = section(found, "packages").rows
    assert (package.what, package.before, package.after) == ("torch", "2.12", "2.13")
    (variable,) = section(found, "environment").rows
    assert (variable.before, variable.after, variable.only) == ("1", None, "before")
    assert {row.what for row in section(found, "options").rows} == {"windows", "samples_per_step"}
    assert [(row.before, row.after) for row in section(found, "machine").rows] == [("Epyc", "Xeon")]


def test_runs_of_different_models_are_shown_and_loudly_said() -> None:
    study = analyze_study([entry("a"), entry("b", bench={"model": "resnet50"})])
    assert study.diff is not None
    loud = [one for one in study.problems if one.id == "other_model" and one.affects == (StudyPart.DIFF,)]
    assert len(loud) == 1
    assert loud[0].severity == "refuse"
    assert study.headline == (
        "a and b are not compared: their models differ. Their facts stand side by side."
    )
    assert study.action == "Name runs of one model."


def test_the_reference_is_the_first_of_the_two_whatever_the_order() -> None:
    runs = entry("x/a", speed=100), entry("x/b", speed=50)
    assert (diff(*runs).before, diff(*runs).after) == ("a", "b")
    assert (diff(*runs, reference="b").before, diff(*runs, reference="x/b").after) == ("b", "a")
    assert diff(*runs).headline.startswith("b trains 50 % slower than a (100 → 50.0 samples/s)")
    assert diff(*runs, reference="b").headline.startswith("a trains 2.00 times as fast as b (50.0 → 100 ")


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        (88, "b trains 12 % slower than a (100 → 88.0 samples/s)"),
        (31, "b trains at 31 % of the speed of a (100 → 31.0 samples/s)"),
        (0.32, "b trains 312 times slower than a (100 → 0.32 samples/s)"),
    ],
)
def test_the_second_run_is_told_against_the_first_as_the_arrow_goes(speed: float, said: str) -> None:
    assert diff(entry("a", speed=100), entry("b", speed=speed)).headline.startswith(said)


def test_losses_that_differ_by_rounding_have_not_changed() -> None:
    before = entry("a", bench={"last_loss": 1.8651234})
    rounded, changed = (entry("b", bench={"last_loss": loss}) for loss in (1.8651235, 1.866))
    assert "last loss" not in [row.what for row in section(diff(before, rounded), "step").rows]
    assert "last loss" in [row.what for row in section(diff(before, changed), "step").rows]


def test_a_share_that_moved_by_less_than_is_shown_has_not_changed() -> None:
    what = "exposed communication of the traced step"

    def rows(share: float) -> list[str]:
        found = diff(entry("a", breakdown=parts(100, 0.2)), entry("b", breakdown=parts(100, share)))
        return [row.what for row in section(found, "step").rows]

    assert what not in rows(0.2003)
    assert what in rows(0.21)


def test_beside_scaling_the_part_that_moved_most_is_told_as_time() -> None:
    """Against the ideal another part may have grown most: the two must not read as one claim."""
    found = analyze_study(
        [
            entry("n2", ranks=2, speed=100, breakdown=parts(100, 0.24)),
            entry("n4", ranks=4, speed=60, breakdown=parts(165, 0.37)),
        ]
    )
    assert found.diff is not None
    assert "exposed communication, counted in time, moved most: +37.0 ms" in found.diff.headline
    assert found.diff.moved.startswith("Exposed communication, counted in time, moved most")
    assert "against ideal scaling compute grew most" in found.headline


def test_the_slower_runs_own_verdict_tells_what_to_do_and_close_runs_are_to_be_repeated() -> None:
    slow = entry("b", speed=50, analysis={"findings": (finding("slow_link", action="Send less."),)})
    assert diff(entry("a"), slow).action == "What the report of b advises: Send less."
    assert diff(slow, entry("a")).action == "What the report of b advises: Send less."
    assert diff(entry("a"), entry("b", speed=98)).action.startswith("Repeat each three times")


def test_the_same_run_beside_itself_shows_no_change() -> None:
    run = entry("a")
    found = diff(run, structs.replace(run, name="b/a"))
    assert all(not part.rows for part in found.sections)
    assert "they are one and the same run" in found.headline


def test_runs_of_one_speed_train_equally_fast() -> None:
    assert diff(entry("a"), entry("b")).headline.startswith("a and b train equally fast")


def test_traced_steps_that_moved_against_the_speed_explain_nothing() -> None:
    before = entry("a", speed=100, breakdown=parts(12, idle=0.4))
    found = diff(before, entry("b", speed=60, breakdown=parts(9, idle=0.1)))
    assert "the traced steps do not show the difference, theirs moved the other way" in found.headline
    assert "(12.0 ms → 9.00 ms)" in found.headline
    assert "idle" not in found.headline


def test_the_part_named_moved_as_the_step_did() -> None:
    """Idle time lost most, but the step has grown: communication is what it grew by."""
    before = entry("a", speed=320, breakdown=parts(100, 0.1, idle=0.5))
    after = entry("b", speed=300, breakdown=parts(110, 0.4, idle=0.1))
    assert "exposed communication grew most: +34.0 ms in a traced step" in diff(before, after).headline


def test_without_samples_the_steps_are_compared() -> None:
    before = entry("a", speed=None, scheme="", breakdown=parts(100))
    after = entry("b", speed=None, scheme="", breakdown=parts(150))
    assert diff(before, after).headline.startswith(
        "a step of b takes 50 % longer than one of a (100 ms → 150 ms)"
    )


def test_three_runs_have_no_diff() -> None:
    assert analyze_study([entry("a"), entry("b"), entry("c")]).diff is None


def test_hybrids_differ_by_axis_and_the_changes_add_up_to_the_step() -> None:
    """100 ms with 20 exposed (tp 15, dp 5) against 130 with 39 (tp 9, dp 30)."""
    found = diff(
        entry("a", breakdown=parts(100, 0.2), analysis={"communication": communication(tp=15, dp=5)}),
        entry("b", breakdown=parts(130, 0.3), analysis={"communication": communication(tp=9, dp=30)}),
    )
    rows = {row.what: row for row in section(found, "parts").rows}
    assert set(rows) == {
        "step",
        "compute",
        "exposed communication along tp",
        "exposed communication along dp",
    }
    step = rows.pop("step")
    assert step.change == 30 * MS
    assert sum(row.change or 0 for row in rows.values()) == step.change
    assert rows["exposed communication along dp"].share == pytest.approx(25 / 30)
    assert rows["exposed communication along tp"].change == -6 * MS
    assert "exposed communication by axis: dp +25.0 ms, tp −6.00 ms" in found.headline
    layers = {row.what: row.change for row in section(found, "exposed").rows}
    assert layers["fc along tp"] == -3 * MS
    assert sum(change or 0 for change in layers.values()) == 19 * MS
    apart = found.difference
    assert apart is not None and apart.change_ns == 30 * MS == apart.after_ns - apart.before_ns
    assert sum(change.change_ns for change in apart.changes) == apart.change_ns
    assert apart.by_axis == {"dp": 25 * MS, "tp": -6 * MS}


def test_an_axis_of_one_run_alone_takes_no_time_in_the_other() -> None:
    found = diff(
        entry("a", breakdown=parts(100, 0.2), analysis={"communication": communication(tp=15, dp=5)}),
        entry("b", breakdown=parts(100, 0.2), analysis={"communication": communication(fsdp=20)}),
    )
    rows = {row.what: row.change for row in section(found, "parts").rows}
    assert rows == {
        "exposed communication along fsdp": 20 * MS,
        "exposed communication along tp": -15 * MS,
        "exposed communication along dp": -5 * MS,
    }
