"""Frameworks side by side: the losses' agreement before any speed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec import structs

from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.framework_results import FrameworkStudy
from perfscope.analysis.study.results import RunEntry
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.study.build import build_study_report
from perfscope.reports.study.document import build_study_document
from perfscope.reports.text import render_text
from perfscope.rundir.records import rank_record
from tests.support.records import run_record
from tests.support.study_entries import entry, parts

GOOD: list[float | None] = [2.3, 2.1, 1.9, 1.8]
MB = 2**20
NUMBERS = itertools.count(1)


def run(
    framework: str,
    *,
    ranks: int = 1,
    speed: float = 100.0,
    losses: list[float | None] = GOOD,
    model: str = "lenet",
    batch: int = 32,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> RunEntry:
    """One training of `perfscope bench run --framework`."""
    ends = [1_000_000 * at for at in range(len(losses) + 1)]
    name, _, backend = framework.partition("-")
    known = {"name": name, "version": "1.0", **({"backend": backend} if backend else {})}
    labels = {"framework": framework, "model": model, "ranks": str(ranks)}
    made = entry(
        f"{framework}-{model}-n{ranks}-b{batch}-{next(NUMBERS)}",
        ranks=ranks,
        scheme="",
        speed=speed,
        run={"labels": labels, "options": {"samples_per_step": batch, "framework_run": settings or {}}},
        batch=batch,
        records={rank: {"losses": losses, "step_ends_ns": ends} for rank in range(ranks)} if losses else {},
        **more,
    )
    metas = {
        rank: rank_record({"framework": known, "memory": {"peak_rss_bytes": (100 + rank) * MB}})
        for rank in range(ranks)
    }
    return structs.replace(made, metas=metas)


def study(*runs: RunEntry) -> FrameworkStudy:
    (found,) = analyze_study(runs, by="framework").frameworks
    return found


def test_frameworks_that_learn_the_same_are_ranked_with_scaling_memory_and_time_in_no_kernel() -> None:
    found = study(
        run("torch", speed=100, breakdown=parts(100, 0.0, idle=0.25)),
        run("torch", ranks=2, speed=150),
        run("jax", speed=200, breakdown=parts(50, 0.0, idle=0.1)),
        run("jax", ranks=2, speed=390),
    )
    assert (found.reference, found.world_sizes) == ("torch", (1, 2))
    jax, torch = found.rows
    assert (jax.name, torch.name, torch.is_reference) == ("jax", "torch", True)
    assert [point.speedup for point in torch.points] == [1.0, 1.5]
    assert torch.points[1].efficiency == pytest.approx(0.75)
    assert jax.points[0].no_kernel_share == pytest.approx(0.1)
    assert torch.points[1].peak_memory_bytes == 201 * MB
    assert jax.parity[1].agrees and jax.parity[2].agrees
    assert found.headline == (
        "lenet: on 1 rank jax trains 2.00 times as many samples/s as torch; "
        "on 2 ranks jax trains 2.60 times as many samples/s as torch."
    )
    assert found.scaling == ("From 1 to 2 ranks jax gains most, 1.95 times the samples/s (98 % efficiency).")
    assert jax.points[0].traced_ratio == pytest.approx(1)


def test_a_framework_that_learns_something_else_has_a_speed_and_no_rank() -> None:
    found = study(
        run("torch", speed=100),
        run("jax", speed=900, losses=[2.3, 2.1, 1.2, 0.5]),
        run("tensorflow", speed=50),
    )
    assert "torch trains 2.00 times" in found.headline and "jax trains" not in found.headline
    assert found.action.startswith("Find out why jax does not learn as the reference does")
    assert [figure_text(one) for one in found.missing] == ["the speed of jax against others on 1 rank"]


def test_without_losses_nothing_is_ranked_and_the_reason_is_said() -> None:
    found = study(run("torch", speed=100), run("jax", speed=900, losses=[]))
    assert found.headline == "lenet: no two frameworks can be compared."
    assert found.action == ""
    (gap,) = found.missing
    assert figure_text(gap) == "the speed of jax against others on 1 rank"
    assert cause_text(gap) == "its losses or those of torch were not recorded"


def test_each_model_has_a_table_of_its_own_and_keras_says_on_what_it_runs() -> None:
    analysis = analyze_study(
        [
            run(framework, model=model)
            for framework in ("torch", "keras-jax", "keras-torch", "mxnet")
            for model in ("lenet", "smallcnn")
        ],
        by="framework",
    )
    assert [one.title for one in analysis.frameworks] == ["lenet", "smallcnn"]
    names = [row.name for row in analysis.frameworks[0].rows]
    assert sorted(names) == ["keras-jax", "keras-torch", "mxnet", "torch"]
    report = build_study_report(analysis)
    text = render_text(report, width=160)
    assert "Frameworks side by side: lenet" in text and "Frameworks side by side: smallcnn" in text
    assert "retired upstream" in text
    document = build_study_document(analysis, {})
    assert "mxnet and torch are fastest on lenet (1 rank), level with each other" in analysis.headline
    assert "are within 5 % of each other" in analysis.frameworks[0].headline
    assert len(document["frameworks"]) == 2  # type: ignore[arg-type]


def test_runs_of_other_frameworks_are_told_by_what_their_ranks_say_where_no_label_does() -> None:
    labelled = [run(name) for name in ("torch", "jax")]
    plain = [
        structs.replace(
            one,
            analysis=structs.replace(
                one.analysis, run=run_record({**one.analysis.run.document, "labels": {}})
            ),
        )
        for one in labelled
    ]
    found = analyze_study(plain, by="framework").frameworks
    assert [row.name for row in found[0].rows] == ["jax", "torch"]


def test_repeats_that_overlap_are_level_and_those_that_do_not_are_ranked() -> None:
    runs = [
        run(name, speed=speed)
        for name, speeds in {"torch": (90, 100, 140), "jax": (120, 130, 135), "mxnet": (50, 60, 70)}.items()
        for speed in speeds
    ]
    found = study(*runs)
    assert found.headline == (
        "lenet: on 1 rank jax and torch are level, for their repeats overlap, ahead of mxnet."
    )
    text = render_text(build_study_report(analyze_study(runs, by="framework")), width=160)
    assert "90" in text and "jax and torch are fastest on lenet (1 rank), level with each other" in text


def test_one_repeat_that_learns_something_else_takes_the_framework_out() -> None:
    astray = run("jax", speed=190, losses=[2.3, 2.2, 2.1, 2.0])
    found = study(run("torch"), run("jax", speed=200), run("jax", speed=210), astray)
    (row,) = (one for one in found.rows if one.name == "jax")
    assert row.parity[1].agrees is False and not row.agrees(1)
    assert "jax" in found.action and "on 1 rank" in found.agreement


def test_a_loss_that_is_no_number_is_not_left_out_of_the_comparison() -> None:
    """Without the NaN what is left is shifted by a step, or ends before it: neither is the same training."""
    for bad in ([2.3, None, 1.9, 1.8], [2.3, 2.1, 1.9, None]):
        found = study(run("torch"), run("jax", losses=bad))
        (row,) = (one for one in found.rows if one.name == "jax")
        assert row.parity[1].agrees is False and "no number at step" in row.parity[1].reason


def test_runs_of_several_seeds_are_held_against_the_reference_of_their_own() -> None:
    other: list[float | None] = [2.5, 2.2, 2.0, 1.7]
    seeds = {0: GOOD, 1: other}
    alike = [
        run(name, losses=losses, settings={"seed": seed, "learning_rate": 0.05})
        for name in ("torch", "jax")
        for seed, losses in seeds.items()
    ]
    assert study(*alike).agreement.startswith("The losses of jax agree with those of torch")
    unlike = run("jax", losses=other, settings={"seed": 0, "learning_rate": 0.1})
    found = study(alike[0], unlike)
    (row,) = (one for one in found.rows if one.name == "jax")
    assert "trained with learning rate 0.1 for 0.05: the first losses differ" in row.parity[1].reason


def test_other_batches_and_machines_are_studies_of_their_own_and_other_models_are_no_problem() -> None:
    runs = [
        *(run(name, batch=batch) for name in ("torch", "jax") for batch in (32, 64)),
        *(run(name, model="smallcnn") for name in ("torch", "jax")),
    ]
    analysis = analyze_study(runs, by="framework")
    titles = [one.title for one in analysis.frameworks]
    assert titles == ["lenet, 32 samples per step", "lenet, 64 samples per step", "smallcnn"]
    (problem,) = (one for one in analysis.problems if one.severity == "refuse" or one.id == "other_batch")
    assert problem.severity == "warn" and "compared within each" in problem.text
    apart = analyze_study([run("torch"), run("jax", cpu="Xeon")], by="framework")
    assert [one.title for one in apart.frameworks] == ["lenet, Epyc, 8 CPUs", "lenet, Xeon, 8 CPUs"]
    assert "no two frameworks can be compared" in apart.headline and apart.diff is None


def test_a_number_of_ranks_without_the_reference_is_said() -> None:
    found = study(run("torch"), run("jax"), run("jax", ranks=2, speed=190))
    assert [cause_text(one) for one in found.missing] == [
        "there is no run of torch on 2 ranks to compare its losses with"
    ]


def test_more_than_two_numbers_of_ranks_have_a_speedup_chart() -> None:
    runs = [run(name, ranks=n, speed=90.0 * n) for name in ("torch", "jax") for n in (1, 2, 4)]
    sections = build_study_report(analyze_study(runs, by="framework")).sections
    (chart,) = (b for b in sections[0].blocks if getattr(b, "id", "") == "study-framework-scaling")
    assert [curve.label for curve in chart.curves] == ["jax", "torch", "ideal"]  # type: ignore[union-attr]


def test_versions_and_ways_come_from_what_was_run() -> None:
    """Horovod's ranks say they are torch's; what was asked for says more."""
    how = {"version": "0.28.1", "how": "PyTorch: eager, with Horovod"}
    analysis = analyze_study([run("torch"), run("horovod", settings=how)], by="framework")
    (row,) = (one for one in analysis.frameworks[0].rows if one.name == "horovod")
    assert (row.version, row.how) == ("0.28.1", "PyTorch: eager, with Horovod")
    assert not [one for one in analysis.problems if one.id in ("other_command", "other_packages")]


def test_of_disturbed_runs_the_order_is_measured_and_not_known() -> None:
    runs = [run("torch", speed=100), run("jax", speed=200, clean=False)]
    analysis = analyze_study(runs, by="framework")
    assert analysis.headline == (
        "Both frameworks learn the same: which is fastest on lenet (1 rank) cannot be determined, "
        "because the runs were disturbed."
    )
    assert "jax trains 2.00 times" in analysis.frameworks[0].headline
    assert analysis.frameworks[0].headline.endswith(", in runs that were disturbed.")
    assert analysis.frameworks[0].action.startswith("Record the runs again")
    again = analyze_study([*runs, run("jax", speed=190)], by="framework")
    assert "jax is fastest on lenet" in again.headline and not again.frameworks[0].action
