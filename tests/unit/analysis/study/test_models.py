"""Which model a run trained: two of one name are not compared, shares of one model are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import RunEntry, StudyAnalysis
from perfscope.rundir.records import LayersRecord
from perfscope.rundir.typed import decode_record
from tests.support.study_entries import entry, layer

BIG = {"0": ("Conv2d", 896), "7": ("Linear", 4_195_328)}
SMALL = {"0": ("Conv2d", 896), "7": ("Linear", 65_552)}


def script(name: str, ranks: int, layers: dict[str, tuple[str, int]], **changes: Any) -> RunEntry:
    """A run of a script of one's own, wrapped in DistributedDataParallel unless `root` says other."""
    root = {
        "name": "Sequential",
        "type": "DistributedDataParallel",
        "data_parallel": True,
        "dp_size": ranks,
        **changes.pop("root", {}),
    }
    rows = [layer(at, kind, params) for at, (kind, params) in layers.items()]
    rows += [layer("CrossEntropyLoss", "", None)]
    return entry(name, ranks=ranks, scheme="", root=root, analysis={"layers": tuple(rows)}, **changes)


def said(study: StudyAnalysis, id_: str) -> list[str]:
    return [f"{one.severity}: {one.text}" for one in study.problems if one.id == id_]


def test_two_models_in_the_same_wrapper_are_not_held_against_each_other() -> None:
    study = analyze_study(
        [script("o1", 1, SMALL), script("n2", 2, BIG, speed=150), script("n4", 4, BIG, speed=200)]
    )
    assert said(study, "other_model") == [
        "refuse: The runs' models differ: Sequential, 4,196,224 parameters (n2 and n4); Sequential, 66,448 "
        "parameters (o1); no ratio is formed between them."
    ]
    assert study.scaling is not None
    (series,) = study.scaling.series
    assert [point.world_size for point in series.points] == [2, 4]


def test_two_models_side_by_side_are_said_not_to_be_like_for_like() -> None:
    study = analyze_study([script("a", 1, BIG), script("b", 1, SMALL)])
    (text,) = said(study, "other_model")
    assert text.startswith("refuse: The runs' models differ")
    assert "no ratio is formed between them." in text


def test_models_with_as_many_parameters_in_other_layers_are_other_models() -> None:
    other = {"0": ("Linear", 896), "7": ("Linear", 4_195_328)}
    study = analyze_study([script("a", 1, BIG), script("b", 1, other)])
    assert len(said(study, "other_model")) == 1
    assert len({run.model for run in study.runs}) == 2


def test_a_script_without_the_wrapper_on_one_rank_trains_the_same_model() -> None:
    plain = script("n1", 1, BIG, root={"type": "Sequential"})
    study = analyze_study([plain, script("n2", 2, BIG, speed=150)])
    assert said(study, "other_model") == []
    assert study.scaling is not None
    assert study.scaling.series[0].points[-1].speedup == pytest.approx(1.5)


def test_a_rank_that_holds_part_of_each_layer_trains_the_same_model() -> None:
    cut = {"0": ("Conv2d", 896), "7": ("Linear", 2_097_664)}
    shares = script("tp2", 2, cut, speed=150, root={"type": "Sequential", "data_parallel": False})
    study = analyze_study([script("n1", 1, BIG), shares])
    assert said(study, "other_model") == []
    assert study.scaling is not None
    assert [point.world_size for point in study.scaling.series[0].points] == [1, 2]


def test_a_rank_that_holds_more_of_a_layer_than_the_model_has_trains_another() -> None:
    shares = script("tp2", 2, BIG, root={"type": "Sequential", "data_parallel": False, "dp_size": None})
    study = analyze_study([script("n1", 1, SMALL), shares])
    assert "parameters on a rank (tp2)" in said(study, "other_model")[0]


def test_where_it_cannot_be_told_whether_these_are_shares_of_one_model_it_is_said() -> None:
    cut = {"0": ("Conv2d", 896)}
    tensor = {"type": "Sequential", "data_parallel": False, "dp_size": None}
    study = analyze_study([script("a", 2, BIG, root=tensor), script("b", 2, cut, root=tensor)])
    assert said(study, "other_model") == []
    assert said(study, "model_parts") == [
        "warn: The ranks of a and b hold 896 to 4,196,224 parameters each of Sequential, in other layers or "
        "other shares of them: whether all trained the same model is not known."
    ]


def test_the_record_of_the_layers_counts_before_those_that_a_traced_step_ran() -> None:
    """A traced step need not run every layer."""
    rows = [{"layer": name, "type": kind, "params": params} for name, (kind, params) in BIG.items()]
    whole, skipped = script("a", 1, BIG), script("b", 1, {"0": BIG["0"]})
    recorded = [
        structs.replace(one, layers={0: decode_record(LayersRecord, {"layers": rows})[0]})
        for one in (whole, skipped)
    ]
    assert said(analyze_study(recorded), "other_model") == []
    assert len(said(analyze_study([whole, skipped]), "other_model")) == 1


def test_a_bench_runs_model_is_that_of_its_record_whatever_its_ranks_hold() -> None:
    half = {"layers": (layer("fc", "Linear", 500),)}
    full = {"layers": (layer("fc", "Linear", 1000),)}
    study = analyze_study([entry("a", analysis=full), entry("b", scheme="mp.fc_tp", analysis=half)])
    assert {run.model for run in study.runs} == {"smallcnn, input 3x16x16"}
    assert said(study, "other_model") == said(study, "model_parts") == []
