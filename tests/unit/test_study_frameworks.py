"""Frameworks side by side: the losses' agreement before any speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfscope.analysis.study.analyse import analyse_study
from perfscope.analysis.study.framework_results import FrameworkStudy
from perfscope.analysis.study.results import RunEntry
from perfscope.reports.study.build import build_study_report
from perfscope.reports.study.document import build_study_document
from perfscope.reports.text import render_text
from tests.unit.study_entries import entry, parts

GOOD = [2.3, 2.1, 1.9, 1.8]
MB = 2**20


def run(
    framework: str,
    *,
    ranks: int = 1,
    speed: float = 100.0,
    losses: list[float] = GOOD,
    model: str = "lenet",
    **more: Any,
) -> RunEntry:
    """One training of `perfscope bench run --framework`."""
    ends = [1_000_000 * at for at in range(len(losses) + 1)]
    name, _, backend = framework.partition("-")
    known = {"name": name, "version": "1.0", **({"backend": backend} if backend else {})}
    labels = {"framework": framework, "model": model, "ranks": str(ranks)}
    made = entry(
        f"{framework}-{model}-n{ranks}-{speed}",
        ranks=ranks,
        scheme="",
        speed=speed,
        run={"labels": labels},
        records={rank: {"losses": losses, "step_ends_ns": ends} for rank in range(ranks)} if losses else {},
        **more,
    )
    metas = {
        rank: {"framework": known, "memory": {"peak_rss_bytes": (100 + rank) * MB}} for rank in range(ranks)
    }
    return replace(made, metas=metas)


def study(*runs: RunEntry) -> FrameworkStudy:
    (found,) = analyse_study(runs, by="framework").frameworks
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
        "lenet: on 1 rank jax trains 2.00 times as many samples/s as the others; "
        "on 2 ranks jax trains 2.60 times as many samples/s as the others."
    )


def test_a_framework_that_learns_something_else_has_a_speed_and_no_rank() -> None:
    found = study(
        run("torch", speed=100),
        run("jax", speed=900, losses=[2.3, 2.1, 1.2, 0.5]),
        run("tensorflow", speed=80),
    )
    assert "torch trains 1.25 times" in found.headline and "jax trains" not in found.headline
    assert found.action.startswith("Find out why jax does not learn as the reference does")
    assert [one.what for one in found.missing] == ["the speed of jax against others on 1 rank"]


def test_without_losses_nothing_is_ranked_and_the_reason_is_said() -> None:
    found = study(run("torch", speed=100), run("jax", speed=900, losses=[]))
    assert found.headline == "lenet: no two frameworks can be compared."
    assert found.action == ""
    assert [one.what for one in found.missing] == ["whether jax learns the same"]


def test_each_model_has_a_table_of_its_own_and_keras_says_on_what_it_runs() -> None:
    analysis = analyse_study(
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
    assert "are within 5 % of each other" in analysis.headline
    assert len(document["frameworks"]) == 2  # type: ignore[arg-type]


def test_runs_of_other_frameworks_are_told_by_what_their_ranks_say_where_no_label_does() -> None:
    plain = [replace(run(name), analysis=replace(run(name).analysis)) for name in ("torch", "jax")]
    for one in plain:
        one.analysis.run["labels"] = {}
    found = analyse_study(plain, by="framework").frameworks
    assert [row.name for row in found[0].rows] == ["jax", "torch"]
