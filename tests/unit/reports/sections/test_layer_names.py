"""Layers that are only a number in a container are told with their type, and only where a layer is meant."""

from __future__ import annotations

import pytest
from msgspec import structs

from perfscope.reports.build import build_report
from perfscope.reports.model import StackedBars, Table
from perfscope.reports.sections.critical_path import critical_path_section, path_sentence
from perfscope.reports.sections.layer_names import layer_names, with_types
from perfscope.reports.text import render_text
from tests.unit.reports.sections.test_critical_path import path_of, segment
from tests.unit.reports.test_synthetic import synthetic_analysis

NAMES = {"7": "7 (Linear)", "0": "0 (Conv2d)", "features.3": "features.3 (Conv2d)"}


def test_only_bare_numbers_with_a_known_type_get_it() -> None:
    one = synthetic_analysis().layers[0]
    named = [("fc6", "Linear"), ("7", "Linear"), ("features.3", "Conv2d"), ("8", None), ("block2", "Block")]
    layers = [structs.replace(one, layer=name, module_type=kind) for name, kind in named]
    assert layer_names(layers) == {"7": "7 (Linear)", "features.3": "features.3 (Conv2d)"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Rank 0 computed 3 ms more, in backward of 7.",
            "Rank 0 computed 3 ms more, in backward of 7 (Linear).",
        ),
        ("1 ms of it in 7 (forward)", "1 ms of it in 7 (Linear, forward)"),
        ("layer 7 at its roofline", "layer 7 (Linear) at its roofline"),
        ("others, in 7.", "others, in 7 (Linear)."),
        ("above all forward of features.3: 2 ms", "above all forward of features.3 (Conv2d): 2 ms"),
        ("rank 3 came last to 7 of 7 collectives", None),
        ("backward of 7.conv and layer 70", None),
        ("in 7 of 9 calls, 0 of 7", None),
        ("5 ms of it in 7.5 s", None),
    ],
)
def test_a_sentence_is_changed_only_where_it_names_a_layer(said: str, told: str | None) -> None:
    assert with_types(said, NAMES) == (told or said)
    assert with_types(said, {}) == said


def test_the_critical_path_tells_types() -> None:
    path = path_of(
        [segment(0, 0, 90, layer="7", phase="backward"), segment(1, 90, 100, layer="fc", phase="forward")]
    )
    sentence = path_sentence([path], NAMES)
    assert sentence.endswith(": rank 0's 7 (Linear) backward (90 %), rank 1's fc forward (10 %).")
    section = critical_path_section([path], NAMES)
    assert section is not None
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [row[2] for row in table.rows] == ["7 (Linear)", "fc"]


def test_a_sequential_models_layers_are_told_in_every_section() -> None:
    analysis = synthetic_analysis()
    layers = tuple(
        structs.replace(layer, layer=str(at), module_type="Linear")
        for at, layer in enumerate(analysis.layers)
    )
    report = build_report(structs.replace(analysis, layers=layers), None)
    section = report.section("layers")
    assert "(Linear)" in section.lead
    bars = next(block for block in section.blocks if isinstance(block, StackedBars))
    assert all(bar.label.endswith(" (Linear)") for bar in bars.bars)
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert next(column for column in table.columns if column.key == "type").primary
    assert "Linear" in render_text(report)
