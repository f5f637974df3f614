"""Settings of a bench run that cannot be: each is one line with what may be, whoever hands it over."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from perfscope.runners.config import BenchConfig, BenchError, Modifier, check_config
from perfscope.runners.mesh import WORLD, Mesh
from perfscope.vocabulary.axes import Axis

GOOD = BenchConfig(scheme="serial")

OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"num_ranks": 0}, r"ranks: must be a whole number from 1 to 4,096, not 0"),
    ({"num_ranks": 4097}, r"ranks: must be a whole number from 1 to 4,096, not 4097"),
    ({"learning_rate": math.inf}, r"lr: must be a number above 0 and at most 1,000,000, not inf"),
    ({"learning_rate": math.nan}, r"lr: must be a number above 0 .* not nan"),
    ({"learning_rate": 0.0}, r"lr: must be a number above 0 .* not 0"),
    ({"momentum": math.nan}, r"momentum: must be a number of at least 0 and below 1, not nan"),
    ({"momentum": 1.0}, r"momentum: must be a number of at least 0 and below 1, not 1"),
    ({"dropout": -0.1}, r"dropout: must be a number of at least 0 and below 1, not -0.1"),
    (
        {"moving_rate": math.nan},
        r"moving_rate: must be a number from -1,000,000,000 to 1,000,000,000, not nan",
    ),
    (
        {"moving_rate": math.inf},
        r"moving_rate: must be a number from -1,000,000,000 to 1,000,000,000, not inf",
    ),
    ({"timeout_s": math.inf}, r"timeout: must be a number above 0 and at most 86,400, not inf"),
    ({"timeout_s": 1e15}, r"timeout: must be a number above 0 and at most 86,400, not 1000000000000000.0"),
    ({"seed": 10**23}, r"seed: must be a whole number from 0 to 9,223,372,036,854,775,807, not 1000"),
    ({"seed": -1}, r"seed: must be a whole number from 0 to .*, not -1"),
    ({"steps": 10**9 + 1}, r"steps: must be a whole number from 1 to 1,000,000,000, not 1000000001"),
    ({"period": 10**12}, r"period: must be a whole number from 1 to 1,000,000,000"),
    ({"num_microbatches": 0}, r"microbatches: must be a whole number from 1 to"),
    ({"base_batch": 0}, r"base_batch: must be a whole number from 1 to"),
    ({"threads": 10**6}, r"threads: must be a whole number from 1 to 4,096"),
    ({"num_classes": 1}, r"classes: must be a whole number from 2 to 1,000,000, not 1"),
    ({"num_classes": 10**7}, r"classes: must be a whole number from 2 to 1,000,000"),
    ({"batch": 10**15}, r"batch: must be a whole number from 1 to 17,179,869,184"),
    ({"batch": 10**9}, r"1,000,000,000 samples of 3x32x32 is 3,072,000,000,000 numbers; at most"),
    ({"input_shape": (3, 0, 4)}, r"an input of 3x0x4 has no elements"),
    ({"input_shape": (3, 1 << 15, 4)}, r"3x32768x4 is too large; each size must be from 1 to 16,384"),
    ({"modifiers": (Modifier("topk", math.inf),)}, r"\+topk\(inf\): inf is not a number that can be used"),
    ({"num_ranks": 3, "num_hosts": 2}, r"3 ranks cannot be spread evenly over 2 hosts"),
    ({"dtype": "float8"}, r"dtype: must be one of float32, .*, not \"float8\""),
]


@pytest.mark.parametrize(("settings", "pattern"), OUT_OF_RANGE, ids=lambda one: str(one)[:40])
def test_a_setting_out_of_range_is_one_line_with_the_range(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(BenchError, match=pattern) as error:
        check_config(replace(GOOD, **settings))
    assert "\n" not in str(error.value) and len(str(error.value)) < 160


def test_the_ends_of_every_range_are_allowed() -> None:
    check_config(replace(GOOD, num_ranks=4096, batch=4096, seed=(1 << 63) - 1, timeout_s=86_400.0))
    check_config(replace(GOOD, num_classes=2, seed=0, momentum=0.0, dropout=0.0, steps=10**9))
    check_config(replace(GOOD, batch=16, input_shape=(4, 1 << 14, 1 << 14)))


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"period": "x"}, 'period: must be a whole number .*, not "x"'),
    ({"steps": 1.5}, "steps: must be a whole number .*, not 1.5"),
    ({"steps": math.nan}, "steps: must be a whole number .*, not nan"),
    ({"batch": True}, "batch: must be a whole number .*, not true"),
    ({"learning_rate": "0.1"}, 'lr: must be a number .*, not "0.1"'),
    ({"learning_rate": None}, "lr: must be a number .*, not None"),
    ({"model": 3}, "model: must be text, not 3"),
    ({"mesh": [1, 0]}, r"mesh: must be AXIS=PARTS,.* numbers above 0, .*, not \[1, 0\]"),
    ({"mesh": {"dp": 0}}, "mesh: must be AXIS=PARTS,.* numbers above 0"),
    ({"mesh": {"time": 2}}, "mesh: must be AXIS=PARTS,.* numbers above 0"),
    ({"input_shape": [3, 4.5, 4]}, "input: must be a whole number, not 4.5"),
    ({"input_shape": None}, "input: must be CHANNELSxHEIGHTxWIDTH such as 3x32x32, or one number, not None"),
    ({"modifiers": [{"name": "topk", "value": "much"}]}, 'modifiers.value: must be a number, not "much"'),
    ({"modifiers": [3]}, "no configuration of a bench run"),
    ({"modifiers": 3}, "no configuration of a bench run"),
    ({"color": 1}, 'has no key "color"; it knows scheme, '),
]


@pytest.mark.parametrize(("settings", "pattern"), WRONG_TYPES, ids=lambda one: str(one)[:40])
def test_json_of_the_wrong_type_is_refused_in_one_line(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(BenchError, match=pattern) as error:
        BenchConfig.from_json(json.dumps({**asdict(GOOD), **settings}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{", '{"model": "mlp"}', "[" * 100_000])
def test_json_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="no configuration of a bench run"):
        BenchConfig.from_json(text)


def test_json_brings_back_what_was_written_and_numbers_beyond_floats_are_refused() -> None:
    config = replace(GOOD, mesh=Mesh(), modifiers=(Modifier("topk", 0.5), Modifier("prio")), period=3)
    assert BenchConfig.from_json(config.to_json()) == config
    whole = BenchConfig.from_json(json.dumps({**asdict(GOOD), "learning_rate": 1}))
    assert whole.learning_rate == 1
    for name in ("learning_rate", "timeout_s", "moving_rate"):
        with pytest.raises(
            BenchError, match=r"must be a number (above 0 and at most|from -1,000,000,000 to)"
        ):
            BenchConfig.from_json(json.dumps({**asdict(GOOD), name: 10**400}))


@pytest.mark.parametrize(
    "text",
    [
        *("\uff12,\uff11", "2,\u0662", "2,0", "2", "2,2,2,2", "-1,2", "2,x", "2\u00b2,1"),
        *("dp=2,tp=0", "dp=2,dp=2", "dp=2,D=2", "dp=", "=2", "dp=2,2", "dp==2", "time=2"),
    ],
)
def test_a_mesh_is_two_or_three_whole_numbers_in_ascii_digits(text: str) -> None:
    with pytest.raises(ValueError, match=r"AXIS=PARTS,... such as dp=2,tp=2"):
        Mesh.parse(text)
    assert Mesh.parse(" 2, 3 ,4") == Mesh.positional(2, 3, 4)


def test_named_axes_and_every_older_spelling_give_the_same_mesh() -> None:
    named = Mesh({Axis.PP: 3, Axis.DP: 2, Axis.TP: 1})
    for text in ("dp=2,pp=3", " pp=3, dp=2,tp=1", "D=2,M=1,S=3", "2,1,3"):
        assert Mesh.parse(text) == named
    assert str(named) == "dp=2,pp=3" and str(Mesh()) == "dp=1" and hash(named) == hash(Mesh.parse("2,1,3"))
    old: list[Any] = [{"data": 2, "model": 1, "stage": 3}, [2, 1, 3], {"dp": 2, "pp": 3}]
    for raw in old:
        assert BenchConfig.from_json(json.dumps({**asdict(GOOD), "mesh": raw})).mesh == named
    assert Mesh.parse("2,2").for_scheme("dp.hsdp") == Mesh({Axis.DP: 2, Axis.FSDP: 2})
    assert Mesh.parse("2,2").for_scheme("hy.numa_replica") == Mesh({Axis.DP: 2, Axis.NUMA: 2})
    assert Mesh.parse("4,1").for_scheme("dp.fsdp") == Mesh({Axis.FSDP: 4})
    assert Mesh.parse("dp=2,fsdp=2").for_scheme("dp.fsdp") == Mesh({Axis.DP: 2, Axis.FSDP: 2})


def test_ranks_are_laid_out_as_a_device_mesh_in_the_order_of_the_axes() -> None:
    mesh = Mesh({Axis.DP: 2, Axis.FSDP: 3, Axis.PP: 2, Axis.TP: 2})
    grid = np.arange(24).reshape(2, 3, 2, 2)
    for rank in range(24):
        d, f, p, t = (int(one[0]) for one in np.nonzero(grid == rank))
        assert mesh.rank_of({Axis.DP: d, Axis.FSDP: f, Axis.PP: p, Axis.TP: t}) == rank
        assert mesh.data_index(rank) == 3 * d + f and mesh.index(Axis.PP, rank) == p
        assert mesh.group(Axis.FSDP, rank) == tuple(grid[d, :, p, t])
    assert mesh.num_data_parts == 6


def test_groups_are_those_of_their_members_in_the_order_of_first_ranks() -> None:
    mesh = Mesh.positional(3, 2, 4)
    for axis, size in ((Axis.DP, 3), (Axis.TP, 2), (Axis.PP, 4), (WORLD, 24)):
        groups = mesh.groups(axis)
        assert groups == tuple(dict.fromkeys(mesh.group(axis, rank) for rank in range(24)))
        assert sorted(rank for group in groups for rank in group) == list(range(24))
        assert {len(group) for group in groups} == {size}
    assert mesh.groups(Axis.DP)[1] == (1, 9, 17)
    with pytest.raises(ValueError, match="'time' is not a valid Axis"):
        mesh.groups("time")
