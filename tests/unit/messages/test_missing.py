"""Every figure and every cause has its English, and codes stay what they are."""

from __future__ import annotations

import string
from typing import Any

import pytest

from perfscope.analysis.missing import missing_figure
from perfscope.messages import missing as messages
from perfscope.messages.lists import first_of, ranks_of
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

DETAIL: dict[str, Any] = {
    **dict.fromkeys(("path", "part", "collective", "group", "host", "sources", "run", "framework"), "x_y"),
    "failure": "x_y",
    **dict.fromkeys(("size", "calls", "notes", "reasons", "end", "runs", "sizes", "and_layers"), "z"),
    **dict.fromkeys(("count", "total", "num_ranks", "window", "rank", "least", "most"), 3),
    **dict.fromkeys(("time_ns", "total_ns", "share", "ratio", "jump_s", "apart_s", "value"), 0.5),
    **dict.fromkeys(("reference", "of_series"), 1),
    **dict.fromkeys(("hosts", "windows"), (1, 2)),
    **dict.fromkeys(("counters", "layers"), ("x_y", "z")),
    "detail": "words",
    "absent": (("power", "z"),),
}


@pytest.mark.parametrize("figure", Figure)
def test_every_figure_has_a_name(figure: Figure) -> None:
    text = messages.figure_text(
        missing_figure(figure, Cause.PROBE_LIMIT, ranks=(0, 1), **{**DETAIL, "hosts": ("a", "b")})
    )
    assert text and "{" not in text
    assert figure.value == figure.name.lower()


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words_or_carries_them(cause: Cause) -> None:
    entry = missing_figure(Figure.LAYERS, cause, ranks=(0, 1), **DETAIL)
    assert "{" not in messages.cause_text(entry)
    recorded = missing_figure(Figure.LAYERS, cause, reason="as recorded")
    assert messages.cause_text(recorded) == "as recorded"
    assert cause.value == cause.name.lower()


def test_templates_name_figures_and_causes_that_exist_in_other_wordings() -> None:
    for figure, special in messages._WHY_OF.items():
        for cause, template in special.items():
            assert isinstance(figure, Figure) and isinstance(cause, Cause)
            assert all(field != "" for _, field, _, _ in string.Formatter().parse(template))


def test_an_entry_of_one_framework_names_the_ranks_that_it_is_of() -> None:
    entry = missing_figure(Figure.LAYERS, Cause.PROBE_LIMIT, ranks=(0, 2), what="layers", reason="no scopes")
    assert messages.missing_document(entry) == {
        "what": "layers of ranks 0, 2",
        "reason": "no scopes",
        "affects": [],
        "figure": "layers",
        "cause": "probe_limit",
    }


def test_the_same_gap_is_equal_whoever_made_it() -> None:
    one = missing_figure(Figure.REPLAY, Cause.OTHER_STEPS_TRACED, window=3)
    assert {one: None} == {missing_figure(Figure.REPLAY, Cause.OTHER_STEPS_TRACED, window=3): None}


def test_long_lists_name_the_first_and_count_the_others() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert ranks_of([3]) == "rank 3"
    assert ranks_of(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
