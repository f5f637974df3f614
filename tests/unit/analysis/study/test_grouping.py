"""What runs are compared by: named facts may differ, and what is not named is refused with what to write."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.grouping import names_of, with_name
from perfscope.analysis.study.results import RunEntry, StudyAnalysis
from perfscope.reports.document import render_json
from perfscope.reports.study.build import build_study_report
from perfscope.reports.text import render_text
from tests.support.study_entries import entry, parts


def run(name: str, batch: int, speed: float, **options: Any) -> RunEntry:
    """A program of no scheme, labeled with its batch and its name."""
    document = {"labels": {"batch": str(batch), "name": name}, "options": {"samples_per_step": batch}}
    document |= options.pop("run", {})
    return entry(name, scheme="", batch=batch, speed=speed, run=document, **options)


def refusals(study: StudyAnalysis) -> dict[str, str]:
    return {one.id: one.text for one in study.problems if one.severity == "refuse"}


BATCHES = [("b16", 16, 100.0), ("b64", 64, 240.0), ("b256", 256, 300.0)]


@pytest.mark.parametrize(
    ("by", "titles"),
    [
        ("batch", ["batch 256", "batch 64", "batch 16"]),
        ("label:batch", ["256", "64", "16"]),
        ("label:name,batch", ["name b256, batch 256", "name b64, batch 64", "name b16, batch 16"]),
    ],
)
@pytest.mark.parametrize("num", [2, 3])
def test_runs_of_several_batches_are_compared_by_the_batch(by: str, titles: list[str], num: int) -> None:
    study = analyze_study([run(*one) for one in BATCHES[-num:]], by=by)
    assert not refusals(study)
    (schemes,) = study.schemes
    assert [row.title for row in schemes.rows] == titles[:num]
    assert schemes.pairs[0].ratio == pytest.approx(300 / 240)
    assert schemes.verdict is not None
    (said,) = [one for one in study.problems if one.id == "other_batch"]
    assert (
        said.severity,
        said.text.endswith(f"--by {by} names it, so that they are compared all the same."),
    ) == (
        "warn",
        True,
    )
    assert study.diff is None or not study.diff.refused


def test_settings_whose_updates_differ_have_no_winner_in_learning() -> None:
    batches = [*BATCHES[:2], ("b256", 256, 350.0)]
    verdict = analyze_study([run(*one) for one in batches], by="batch").schemes[0].verdict
    assert verdict is not None
    assert " wins" not in verdict.headline
    said = "batch 256 processes the most samples, but not with the same work per update: 350 against 240"
    assert said in verdict.headline
    assert "One update averages 16 to 256 samples: samples/s do not compare learning." in verdict.headline
    assert verdict.action.startswith("Compare losses after equally many samples before choosing batch 256.")
    assert "not modeled" in verdict.turn


def test_schemes_whose_updates_differ_are_said_so_with_the_verdict() -> None:
    runs = [
        entry("a", scheme="dp.ddp", speed=423, bench={"effective_batch": 24}),
        entry("b", scheme="easgd", speed=742, bench={"effective_batch": 6}),
    ]
    headline = analyze_study(runs).schemes[0].verdict.headline  # type: ignore[union-attr]
    assert headline.startswith("easgd processes the most samples, but not with the same work per update: 742")
    assert "One update averages 6 to 24 samples" in headline


def test_time_of_other_batches_is_compared_per_sample() -> None:
    runs = [
        run("b10", 10, 100.0, breakdown=parts(100, 0.4)),
        run("b40", 40, 200.0, breakdown=parts(200, 0.1)),
    ]
    verdict = analyze_study(runs, by="batch").schemes[0].verdict
    assert verdict is not None
    # 40 ms for 10 samples against 20 ms for 40
    assert "500 µs per sample on exposed communication, batch 10 4.00 ms" in verdict.why


def test_a_difference_that_is_not_named_is_refused_with_what_to_write() -> None:
    runs = [run("b16", 16, 100.0), run("b64", 64, 240.0)]
    assert refusals(analyze_study(runs))["other_batch"].endswith("To compare them all the same: --by batch.")
    said = refusals(analyze_study(runs, by="scheme"))
    assert said["other_batch"].endswith("all the same: --by batch.")  # they have no scheme
    schemes = [entry("a", scheme="a", batch=32), entry("b", scheme="b", batch=64)]
    said = refusals(analyze_study(schemes, by="scheme"))
    assert said["other_batch"].endswith("To compare them all the same: --by scheme,batch.")
    machines = [run("b16", 16, 100.0), run("b64", 64, 240.0, cpu="Xeon")]
    said = refusals(analyze_study(machines, by="batch"))
    assert list(said) == ["other_machine"]
    assert said["other_machine"].endswith("To compare them all the same: --by batch,machine.")
    assert not refusals(analyze_study(machines, by="batch,machine"))


def test_a_label_that_does_not_tell_the_batches_apart_does_not_allow_them() -> None:
    runs = [run("a", 16, 100.0, run={"labels": {"x": "1"}}), run("b", 64, 240.0, run={"labels": {"x": "1"}})]
    assert "other_batch" in refusals(analyze_study(runs, by="label:x"))


@pytest.mark.parametrize(
    ("by", "documents", "groups"),
    [
        (
            "env:OMP_PLACES",
            [{"environment": {"OMP_PLACES": "cores"}}, {"environment": {"OMP_PLACES": "threads"}}],
            None,
        ),
        ("option:loader", [{"options": {"loader": "a"}}, {"options": {"loader": "b"}}], None),
        ("dtype", [{"scheme": {"dtype": "float32"}}, {"scheme": {"dtype": "float64"}}], None),
        (
            "option:learning_rate",
            [{"scheme": {"learning_rate": {"rule": "none", "value": rate}}} for rate in (0.1, 0.5)],
            ["0.5", "0.1"],
        ),
        ("backend", [{"scheme": {"backend": "gloo"}}, {"scheme": {"backend": "mpi"}}], None),
        (
            "threads",
            [{"scheme": {"threads": 1}}, {"scheme": {"threads": 2}}],
            ["2 threads per rank", "1 threads per rank"],
        ),
    ],
)
def test_any_recorded_setting_tells_runs_apart(
    by: str, documents: list[dict[str, Any]], groups: list[str] | None
) -> None:
    runs = [
        entry(name, scheme="", speed=speed, run={"options": {"samples_per_step": 32}, **document})
        for (name, speed), document in zip((("a", 100.0), ("b", 150.0)), documents, strict=True)
    ]
    study = analyze_study(runs, by=by)
    assert not refusals(study)
    titles = [row.title for row in study.schemes[0].rows]
    assert titles == groups or (groups is None and len(set(titles)) == 2)


def test_several_numbers_of_ranks_are_compared_where_they_are_named() -> None:
    runs = [run("a", 16, 100.0, ranks=2), run("b", 64, 240.0, ranks=4)]
    study = analyze_study(runs, by="world_size,batch")
    assert not refusals(study)
    assert [row.title for row in study.schemes[0].rows] == ["4 ranks, batch 64", "2 ranks, batch 16"]


def test_names_are_read_and_what_is_none_is_refused() -> None:
    assert names_of("batch,label:a,b,dtype") == ("batch", "label:a,b", "dtype")
    assert with_name("label:x", "batch") == "label:x,batch"
    assert with_name("", "batch") == "batch"
    for wrong in ("ranks", "batch,", "label:", "env:", "framework,batch"):
        with pytest.raises(ValueError, match=r"is not known|alone"):
            names_of(wrong)


def test_the_report_shows_the_batch_beside_the_speed() -> None:
    report = build_study_report(analyze_study([run(*one) for one in BATCHES], by="batch"), {})
    assert "Batch" in render_text(report)
    assert '"by": "batch"' in render_json(report.document).replace('"by":"batch"', '"by": "batch"')


def test_groups_by_machine_leave_out_the_cpu_model_that_all_have() -> None:
    def on(link: str, cpu: str, speed: float) -> RunEntry:
        return run(link, 16, speed, cpu=cpu, run={"options": {"cluster": f"2x1@{link}"}, "labels": {}})

    same = analyze_study([on("1gbit", "Epyc", 100.0), on("10gbit", "Epyc", 300.0)], by="machine")
    names = [run.group for run in same.runs]
    assert len(set(names)) == 2
    assert {name.rpartition(", ")[2] for name in names} == {"links of 1gbit", "links of 10gbit"}
    assert not any("Epyc" in name for name in names)
    others = analyze_study([on("1gbit", "Epyc", 100.0), on("10gbit", "Xeon", 300.0)], by="machine")
    assert {run.group.partition(",")[0] for run in others.runs} == {"Epyc", "Xeon"}


def test_groups_by_machine_and_another_fact_leave_out_what_all_machines_share() -> None:
    def on(cluster: str, speed: float) -> RunEntry:
        options = {"cluster": cluster, "samples_per_step": 16}
        return run(cluster, 16, speed, cpu="Epyc", run={"options": options, "labels": {}})

    study = analyze_study([on("2x1@1gbit", 100.0), on("2x1@10gbit", 300.0)], by="batch,machine")
    assert {run.group for run in study.runs} == {"batch 16, links of 1gbit", "batch 16, links of 10gbit"}
    unlike = analyze_study([on("2x1@1gbit", 100.0), on("2x1", 300.0)], by="batch,machine")
    assert {run.group for run in unlike.runs} == {"batch 16, 8 CPUs, links of 1gbit", "batch 16, 8 CPUs"}
