"""Layers that a call serves, as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.rundir.served_layers import axis_of, decoded, encoded


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(1, 10**18 - 1), max_size=5))
def test_what_is_written_is_read(layers: dict[str, int]) -> None:
    assert decoded(encoded(layers)) == layers


def test_text_has_nothing_that_trace_files_change() -> None:
    assert encoded({'a"b\\c': 1, "blocks.0.q=k": 2}) == "a%22b%5Cc=1&blocks.0.q%3Dk=2"


@pytest.mark.parametrize(
    "text", ["", "conv1", "conv1=", "conv1=-1", "conv1=1.5", "a=1&b=x", "a=" + 5000 * "9", "a=²"]
)
def test_other_text_says_nothing(text: str) -> None:
    assert decoded(text) == {}


def test_an_axis_may_stand_in_front() -> None:
    text = "dp%3F?a=1&b=3"
    assert decoded(text) == {"a": 1, "b": 3}
    assert (axis_of(text), axis_of("a=1")) == ("dp?", "")


def test_a_layer_without_bytes_has_no_part() -> None:
    assert decoded("a=0&b=3") == {"b": 3}
