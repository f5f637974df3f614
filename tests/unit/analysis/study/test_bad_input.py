"""What may not be compared, and what is broken: said in words, guessed nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from perfscope.analysis.bench import COUNTED
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import Problem, RunEntry, StudyAnalysis, UnusableRun
from perfscope.messages.missing import cause_text, figure_text
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from tests.support.study_entries import efficiency, entry


def problem(study: StudyAnalysis, id_: str) -> Problem:
    found = [one for one in study.problems if one.id == id_]
    assert len(found) == 1, [(one.id, one.text) for one in study.problems]
    return found[0]


def without_ranks(one: RunEntry, kept: int) -> RunEntry:
    analysis = structs.replace(one.analysis, ranks=one.analysis.ranks[:kept])
    return structs.replace(one, analysis=analysis)


def test_one_run_alone_is_refused() -> None:
    study = analyze_study([entry("runs/only")])
    assert study.refused
    assert problem(study, "one_run").text.startswith("A study compares runs; only is the only one")
    assert (study.scaling, study.schemes, study.diff) == (None, (), None)
    assert study.headline == "1 run, not compared, for a reason given below."
    assert [run.label for run in study.runs] == ["only"]


def test_no_run_and_unknown_options_are_errors() -> None:
    with pytest.raises(ValueError, match="no run was given"):
        analyze_study([])
    with pytest.raises(ValueError, match="'color' is not known; use world_size, scheme, framework, batch, "):
        analyze_study([entry("a"), entry("b")], by="color")
    with pytest.raises(ValueError, match="'label:' is not known"):
        analyze_study([entry("a"), entry("b")], by="label:")
    with pytest.raises(ValueError, match="neither strong nor weak"):
        analyze_study([entry("a"), entry("b")], mode="both")


def test_missing_ranks_put_a_run_out_of_every_ratio() -> None:
    runs = [entry("p1", ranks=1), entry("p2", ranks=2, speed=150), entry("p4", ranks=4, speed=900)]
    study = analyze_study([*runs[:2], without_ranks(runs[2], 3)])
    said = problem(study, "missing_ranks")
    assert said.severity == "refuse"
    assert "p4 recorded 3 of 4 ranks" in said.text
    assert study.scaling is not None
    assert [point.world_size for point in study.scaling.series[0].points] == [1, 2]
    assert study.run("p4").incomplete == ("1 of 4 ranks are missing",)


def test_traces_of_some_ranks_may_be_compared_and_it_is_said() -> None:
    """People trace rank 0 alone; its steps are those of the job."""
    run = {"origin": "import"}
    ranks = [entry(f"p{p}", ranks=p, scheme="", speed=50.0 * p, run=run) for p in (2, 4)]
    study = analyze_study([without_ranks(one, 1) for one in ranks])
    said = [one for one in study.problems if one.id == "missing_ranks"]
    assert [one.severity for one in said] == ["warn", "warn"]
    assert "p4 is imported from the traces of 1 of 4 ranks" in said[1].text
    assert study.scaling is not None
    assert len(study.scaling.series[0].points) == 2


def test_a_run_still_being_written_is_listed_but_not_compared() -> None:
    going_on = entry("b", scheme="b", speed=500, run={"status": "running", "exit": None})
    study = analyze_study([entry("a", scheme="a"), entry("c", scheme="c"), going_on])
    said = problem(study, "running")
    assert "still being written, or perfscope was killed" in said.text
    assert "compare again when it has ended" in said.text
    assert study.run("b").running
    assert [row.title for row in study.schemes[0].rows] == ["a", "c"]


def test_runs_without_windows_keep_their_speed_and_lack_the_rest() -> None:
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b", speed=90, traced=False)])
    assert problem(study, "no_windows").runs == ("b",)
    assert "recorded without a traced step" in problem(study, "no_windows").text
    assert study.schemes[0].rows[1].composition is None
    assert study.schemes[0].pairs[0].ratio == pytest.approx(100 / 90)


def test_unequal_step_counts_are_said() -> None:
    short = entry("b", scheme="b")
    ranks = tuple(structs.replace(rank, num_steps=5) for rank in short.analysis.ranks)
    short = structs.replace(short, analysis=structs.replace(short.analysis, ranks=ranks))
    said = problem(analyze_study([entry("a", scheme="a"), short]), "step_counts")
    assert "20 steps (a); 5 steps (b)" in said.text
    assert "compare losses by samples" in said.text


def test_unequal_world_sizes_that_leave_nothing_to_compare_are_refused() -> None:
    study = analyze_study([entry("a", scheme="a", ranks=2), entry("b", scheme="b", ranks=4)], by="scheme")
    said = problem(study, "unequal_world_sizes")
    assert said.severity == "refuse"
    assert "unequal numbers of ranks (a: 2 ranks; b: 4 ranks); none of them can be compared" in said.text
    assert study.schemes[0].pairs == ()
    assert study.schemes[0].verdict is None
    assert "no winner is named" in study.schemes[0].refused


def test_unequal_world_sizes_inside_one_label_are_said() -> None:
    def labelled(name: str, value: str, ranks: int, speed: float) -> RunEntry:
        return entry(name, scheme="", ranks=ranks, speed=speed, run={"labels": {"net": value}})

    runs = [labelled("a", "ib", 2, 100), labelled("b", "ib", 4, 190), labelled("c", "eth", 2, 80)]
    study = analyze_study(runs, by="label:net")
    said = problem(study, "unequal_world_sizes")
    assert "one net have unequal numbers of ranks (eth: 2 ranks; ib: 2, 4 ranks)" in said.text
    assert [row.runs for row in study.schemes[0].rows] == [("a",), ("c",)]
    assert any(figure_text(one) == "ratios of b" for one in study.missing)


@pytest.mark.parametrize(
    ("other", "id_", "words"),
    [
        (
            {"bench": {"model": "resnet50"}},
            "other_model",
            "models differ: resnet50, input 3x16x16 (b); smallcnn",
        ),
        ({"batch": 64}, "other_batch", "batches differ: 32 samples per step (a); 64 samples per step (b)"),
        ({"cpu": "Xeon"}, "other_machine", "machines differ: Epyc, 8 CPUs (a); Xeon"),
    ],
)
def test_what_may_not_be_compared_is_loud_and_has_no_winner(
    other: dict[str, Any], id_: str, words: str
) -> None:
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b", **other)], by="scheme")
    said = [one for one in study.problems if one.id == id_]
    assert {one.severity for one in said} == {"refuse"}
    assert all(words in one.text for one in said)
    assert "no ratio is formed between them. To compare them all the same: --by " in said[0].text
    assert study.problems[0].severity == "refuse"  # refusals come first
    assert study.schemes[0].verdict is None
    assert study.diff is not None
    assert "faster" not in study.headline
    assert study.headline.startswith("a and b are not compared: their ")
    assert study.diff.headline == study.headline
    assert all(row.ratio is None for part in study.diff.sections for row in part.rows)


def short(one: RunEntry, num_steps: int) -> RunEntry:
    ranks = tuple(structs.replace(rank, num_steps=num_steps) for rank in one.analysis.ranks)
    return structs.replace(one, analysis=structs.replace(one.analysis, ranks=ranks))


def test_a_run_of_far_fewer_steps_is_named() -> None:
    runs = [entry("a", scheme="a"), short(entry("b", scheme="b"), 200), short(entry("c", scheme="c"), 190)]
    said = problem(analyze_study(runs), "step_counts").text
    assert said.endswith("The figures of a rest on fewer steps, 20 against 200.")
    assert "fewer" not in problem(analyze_study(runs[1:]), "step_counts").text


@pytest.mark.parametrize(
    ("broken", "words", "action"),
    [
        ({"run": {"status": "running", "exit": None}}, "b is not closed", "Compare again when"),
        ({"ranks": 3}, "b is without the records of all ranks", "Record the runs again"),
        ({"speed": None}, "b is without a known speed", "--samples-per-step"),
    ],
)
def test_two_runs_of_which_one_is_not_usable_have_no_ratio(
    broken: dict[str, Any], words: str, action: str
) -> None:
    other = entry("b", **{"run": {"world_size": 2}, **broken})
    other = without_ranks(other, 1) if "ranks" in broken else other
    study = analyze_study([entry("a"), other])
    assert study.diff is not None
    assert words in study.diff.refused
    assert study.headline.startswith("a and b are not compared: ")
    assert action in study.action
    assert all(row.ratio is None for part in study.diff.sections for row in part.rows)


def test_other_batches_on_other_ranks_are_a_matter_of_scaling() -> None:
    study = analyze_study([entry("a", batch=32), entry("b", ranks=4, batch=64, speed=190)])
    assert not study.refused
    assert study.diff is not None
    assert study.diff.refused == ""


def test_factors_that_are_none_leave_the_diff_of_two_runs_standing() -> None:
    bad = entry("b", speed=50, analysis={"efficiency": efficiency(2, 80, 100, transfer=-0.5)})
    study = analyze_study([entry("a"), bad])
    assert problem(study, "negative_efficiency").severity == "refuse"
    assert study.headline.startswith("b trains 50 % slower than a")


def test_what_could_not_be_read_is_part_of_the_study() -> None:
    lost = [
        UnusableRun(name="c", reason="it is not there"),
        UnusableRun(name="d", reason="d/run.json is broken"),
    ]
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b")], left_out=lost)
    assert problem(study, "left_out").text == (
        "2 runs that were named are not in this study: c (it is not there); d/run.json is broken."
    )
    assert [(figure_text(one), cause_text(one)) for one in study.missing[:2]] == [
        ("the run c", "it is not there"),
        ("the run d", "d/run.json is broken"),
    ]


def test_of_many_unreadable_runs_some_are_named_and_all_are_missing() -> None:
    lost = [UnusableRun(name=f"x{at}", reason="gone") for at in range(9)]
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b")], left_out=lost)
    assert problem(study, "left_out").text.endswith(": x0, x1, x2, x3, x4, x5 and 3 more (gone).")
    lost = [UnusableRun(name=f"x{at}", reason=f"reason {at}") for at in range(9)]
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b")], left_out=lost)
    assert problem(study, "left_out").text.endswith("x2 (reason 2); 6 more.")
    assert len([one for one in study.missing if figure_text(one).startswith("the run x")]) == 9


def test_ranks_that_recorded_unequal_numbers_of_steps_are_said() -> None:
    gap = missing_figure(Figure.LATER_STEPS, Cause.UNEVEN_STEPS, ranks=(1,), least=10, most=20)
    study = analyze_study([entry("a"), entry("b", speed=90, analysis={"missing": (gap,)})])
    said = problem(study, "uneven_ranks")
    assert (said.severity, said.runs) == ("warn", ("b",))
    assert said.text.startswith("The ranks of b recorded unequal numbers of steps")


def test_runs_that_nothing_groups_are_still_said_to_differ() -> None:
    models = [entry(name, bench={"model": name}) for name in ("alexnet", "resnet50", "vgg16")]
    study = analyze_study(models)
    assert study.by == ""
    assert problem(study, "other_model").text.startswith("The runs' models differ: alexnet, input 3x16x16 (a")


def test_another_data_type_is_refused() -> None:
    half = entry("b", scheme="b")
    assert half.analysis.run.scheme is not None
    scheme = {**half.analysis.run.scheme.document, "dtype": "float64"}
    half = entry("b", scheme="b", run={"scheme": scheme})
    study = analyze_study([entry("a", scheme="a"), half], by="scheme")
    assert "float32 (a); float64 (b)" in next(one.text for one in study.problems if one.id == "other_dtype")
    assert study.schemes[0].verdict is None


def test_doubts_are_warnings_and_the_figures_stand() -> None:
    run = {"perfscope_version": "0.2.0", "packages": {"torch": "2.12.0"}}
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b", run=run, clean=False)])
    assert "0.1.0 (a); 0.2.0 (b)" in problem(study, "other_version").text
    assert "torch 2.12.0 (b); torch 2.13.0 (a)" in problem(study, "other_packages").text
    assert problem(study, "disturbed").text.startswith("b was disturbed by something else")
    assert {one.severity for one in study.problems} == {"warn"}
    assert study.schemes[0].verdict is not None


def test_a_run_that_failed_is_incomplete() -> None:
    run = {"exit": {"code": 3, "signal": None}}
    said = problem(analyze_study([entry("a", scheme="a"), entry("b", scheme="b", run=run)]), "incomplete")
    assert "b is incomplete: it ended with exit code 3" in said.text


def test_speeds_of_traced_steps_are_doubtful() -> None:
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b", bench={"traced_steps": COUNTED})])
    assert (
        "b was too short: the steps their samples/s count were traced" in problem(study, "traced_speed").text
    )


def test_an_unknown_machine_is_said() -> None:
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b", analysis={"machine": None})])
    assert "The machine of b was not recorded" in problem(study, "unknown_machine").text
    assert study.run("b").disturbed is None


def test_the_same_run_twice_is_no_repeat() -> None:
    first = entry("runs/a", scheme="a", speed=100)
    again = structs.replace(first, name="copy/a")
    study = analyze_study([first, again, entry("b", scheme="b", speed=90)])
    assert "is in the study already" in problem(study, "same_run").text
    assert [row.num_repeats for row in study.schemes[0].rows] == [1, 1]
    assert {run.label for run in study.runs} == {"runs/a", "copy/a", "b"}
    assert problem(study, "same_run").runs == ("copy/a",)  # named last, whatever the alphabet says


@pytest.mark.parametrize("closed_first", [True, False])
def test_of_one_run_the_copy_that_tells_most_counts(closed_first: bool) -> None:
    start = {"start_unix_ns": 7, "name": "one"}
    whole = entry("z", scheme="a", run=start)
    untraced = entry("b", scheme="a", run=start, traced=False)
    going_on = entry("a", scheme="a", run={**start, "status": "running", "exit": None})
    copies = [whole, untraced, going_on] if closed_first else [going_on, untraced, whole]
    study = analyze_study([*copies, entry("other", scheme="b", speed=90)])
    twice = [one for one in study.problems if one.id == "same_run"]
    assert {one.runs for one in twice} == {("a",), ("b",)}
    assert all("as z:" in one.text for one in twice)
    assert study.schemes[0].rows[0].runs == ("z",)


def test_runs_without_the_label_are_named_and_left_out() -> None:
    def labelled(name: str, speed: float) -> RunEntry:
        return entry(name, scheme="", speed=speed, run={"labels": {"loader": name}})

    bare = entry("bare", scheme="", speed=1000)
    study = analyze_study([labelled("old", 100), labelled("new", 110), bare], by="label:loader")
    assert (
        problem(study, "no_label").text == "bare has no label loader: left out of the comparison by loader."
    )
    assert [row.title for row in study.schemes[0].rows] == ["new", "old"]


def test_a_label_of_one_run_alone_groups_nothing() -> None:
    labelled = entry("a", run={"labels": {"x": "1"}})
    two = analyze_study([labelled, entry("b", speed=90)])
    assert two.by == ""
    assert not [one for one in two.problems if one.id == "no_label"]
    assert two.headline.startswith("b trains 10 % slower than a")
    asked = analyze_study([labelled, entry("b", speed=90)], by="label:x")
    assert problem(asked, "no_label").severity == "refuse"
    assert asked.headline.startswith("a and b are not compared: b is without what runs are grouped by.")
    three = analyze_study([labelled, entry("b"), entry("c")], by="label:x")
    assert three.headline == "3 runs, not compared, for a reason given below."
    assert three.action == "Group by what two runs or more have."


def test_where_the_user_has_said_by_what_it_is_not_asked_again() -> None:
    runs = [entry(name, scheme="", run={"labels": {"x": "1"}}) for name in "abc"]
    study = analyze_study(runs, by="label:x")
    assert study.headline.startswith("3 runs, not compared by label:x: all usable runs are of one setting")
    assert "--by" not in study.headline


def test_a_label_that_no_run_has_is_refused() -> None:
    study = analyze_study([entry("a"), entry("b")], by="label:color")
    assert problem(study, "no_label").severity == "refuse"
    assert any(figure_text(one) == "which setting wins" for one in study.missing)


def test_runs_that_differ_in_nothing_are_not_grouped_by_a_guess() -> None:
    study = analyze_study([entry("a"), entry("b"), entry("c")])
    assert study.by == ""
    assert study.by_reason.startswith("nothing that runs are grouped by differs")
    assert study.headline == "3 runs; choose what to compare them by with --by."


def test_commands_that_differ_are_no_silent_repeats() -> None:
    runs = [
        entry(f"p{ranks}{name}", ranks=ranks, scheme="", run={"command": ["python", name]})
        for ranks, name in ((1, "x.py"), (2, "x.py"), (2, "y.py"))
    ]
    said = problem(analyze_study(runs), "other_command")
    assert "p2x.py and p2y.py count as repeats of one setting, but their commands differ" in said.text


def test_a_broken_record_does_not_stop_the_study() -> None:
    odd = {
        "labels": None,
        "packages": ["torch"],
        "options": None,
        "exit": None,
        "command": "python",
        "world_size": "two",
    }
    study = analyze_study(
        [entry("a", scheme="a"), entry("b", scheme="b", run=odd, records={0: {"losses": "none"}})]
    )
    assert len(study.runs) == 2
    assert study.schemes[0].verdict is not None
