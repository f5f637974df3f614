"""Kinds of schemes: what `bench list --where` finds, what run.json keeps, what `compare --by` groups."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.cli.bench.listing import command
from perfscope.runners.config import BenchConfig, Modifier
from perfscope.runners.identity import identity
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import SCHEMES
from perfscope.vocabulary.taxonomy import COLUMNS, HYBRID


def listed(*conditions: str) -> dict[str, dict[str, Any]]:
    arguments = [word for condition in conditions for word in ("--where", condition)]
    result = CliRunner().invoke(command, ["--json", *arguments])
    assert result.exit_code == 0, result.output
    return {row["name"]: row["axes"] for row in json.loads(result.output)["schemes"]}


@pytest.mark.parametrize("column", COLUMNS)
def test_every_scheme_has_a_value_of_every_column(column: str) -> None:
    for scheme in SCHEMES:
        assert set(scheme.axes.record()[column].split(HYBRID)) <= set(COLUMNS[column])


def test_conditions_all_hold_and_the_beginning_of_a_value_is_enough() -> None:
    found = listed("synchrony=async", "state=center")
    assert set(found) == {"easgd.async", "easgd.async_mom"}
    assert "hy.owt" in listed("parallelism=model")
    assert "mp.filter" not in listed("parallelism=data+model")
    assert "dp.packed" in listed("compression=low-rank")
    assert "serial" not in listed("compression=sparse")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("speed=high", "parallelism, optimisation, synchrony, topology, compression, state"),
        ("synchrony=late", "none, synchronous, bounded, asynchronous"),
        ("synchrony", "none, synchronous, bounded, asynchronous"),
    ],
)
def test_an_unknown_column_or_value_is_one_line_with_what_there_is(condition: str, said: str) -> None:
    error = CliRunner().invoke(command, ["--where", condition]).exception
    assert said in str(error)
    assert "\n" not in str(error)


def test_a_run_keeps_its_columns_with_the_compression_it_used() -> None:
    config = BenchConfig(scheme="dp.packed", modifiers=(Modifier("topk", 0.01),), num_ranks=2)
    axes = identity(plan(config))["axes"]
    assert axes["compression"] == "sparse"
    assert axes["synchrony"] == "synchronous"
