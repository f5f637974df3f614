"""Model parallelism inside a group: equal to serial training, and every byte foretold."""

from __future__ import annotations

from math import isfinite
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.runners.config import BenchError, Modifier
from perfscope.runners.mesh import Mesh
from perfscope.runners.model_parallel.rows import Halo, RowExtent, split_rows
from perfscope.runners.models import registry as models
from perfscope.runners.models.catalogue import MODELS
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import Alone, World
from tests.runners.mp_cases import against_serial, config_of
from tests.runners.ranks import run_ranks

SPLITS = ("mp.filter", "mp.channel", "mp.fc_tp", "mp.spatial")
HYBRIDS = ("hy.filter_dp", "hy.channel_dp", "hy.fctp_dp")
ON_TWO: list[dict[str, Any]] = [
    *(
        {"scheme": name, "mesh": Mesh.positional(1, 2, 1), "model": model}
        for name in SPLITS
        for model in ("lenet", "branchy")
    ),
    {"scheme": "mp.channel", "mesh": Mesh.positional(1, 2, 1), "model": "mlp"},
    {"scheme": "mp.filter", "mesh": Mesh.positional(1, 2, 1), "model": "smallcnn", "dtype": "float32"},
    {"scheme": "hy.filter_dp", "mesh": Mesh.positional(2, 1, 1), "model": "smallcnn"},
]
ON_FOUR: list[dict[str, Any]] = [
    *(
        {"scheme": name, "mesh": Mesh.positional(1, 4, 1), "model": "branchy", "input_shape": (3, 19, 13)}
        for name in SPLITS
    ),
    {"scheme": "mp.spatial", "mesh": Mesh.positional(1, 4, 1), "model": "lenet", "input_shape": (1, 17, 21)},
    *({"scheme": name, "mesh": Mesh.positional(2, 2, 1), "model": "smallcnn"} for name in HYBRIDS),
    {"scheme": "hy.channel_dp", "mesh": Mesh.positional(1, 4, 1), "model": "smallcnn"},
]
SQUEEZED: dict[str, Any] = {
    "scheme": "hy.filter_dp",
    "mesh": Mesh.positional(2, 2, 1),
    "modifiers": (Modifier("topk", 0.1),),
}
DROPPED: list[dict[str, Any]] = [
    {"scheme": name, "mesh": Mesh.positional(1, 2, 1), "model": "branchy", "dropout": 0.5} for name in SPLITS
]


def _name(case: dict[str, Any]) -> str:
    return "-".join(str(value) for value in case.values())


@pytest.fixture(autouse=True)
def models_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that a test adds in this process are gone after it."""
    monkeypatch.setattr(models, "MODELS", MODELS)


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, Any]]:
    return run_ranks(2, "tests.runners.mp_cases:against_serial", cases=[*ON_TWO, *DROPPED])


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, Any]]:
    return run_ranks(4, "tests.runners.mp_cases:everything", cases=[*ON_FOUR, SQUEEZED], num_windows=80)


def _equal(case: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    for rank, answer in enumerate(answers):
        assert answer["case"] == case
        assert answer["calls"] == answer["expected"], f"rank {rank} sent something else than was foretold"
        assert answer["calls"]
    assert answers[0]["moved"] > 1e-3, "nothing was learnt, so that equality says nothing"
    assert answers[0]["difference"] < (1e-6 if case.get("dtype") == "float32" else 1e-12)


@pytest.mark.parametrize("index", range(len(ON_TWO)), ids=[_name(case) for case in ON_TWO])
def test_two_ranks_equal_serial_and_send_what_was_foretold(
    on_two: list[list[dict[str, Any]]], index: int
) -> None:
    _equal(ON_TWO[index], [answers[index] for answers in on_two])


@pytest.mark.parametrize("index", range(len(ON_FOUR)), ids=[_name(case) for case in ON_FOUR])
def test_four_ranks_equal_serial_and_send_what_was_foretold(
    on_four: list[dict[str, Any]], index: int
) -> None:
    _equal(ON_FOUR[index], [answers["cases"][index] for answers in on_four])


def test_hybrid_sends_compressed_gradients_over_the_data_axis(on_four: list[dict[str, Any]]) -> None:
    def sent(answer: dict[str, Any]) -> int:
        calls: dict[tuple[str, str, int, int], int] = answer["calls"]
        return sum(count * size for (_, axis, _, size), count in calls.items() if axis == "dp")

    plain = next(index for index, case in enumerate(ON_FOUR) if case["scheme"] == SQUEEZED["scheme"])
    for answers in on_four:
        squeezed, dense = answers["cases"][len(ON_FOUR)], answers["cases"][plain]
        assert squeezed["calls"] == squeezed["expected"]
        assert 0 < sent(squeezed) < 0.6 * sent(dense)  # a tenth of the values, with places, from both ranks
        assert all(map(isfinite, squeezed["losses"]))


def test_dropout_keeps_what_ranks_hold_in_common_in_common(on_two: list[list[dict[str, Any]]]) -> None:
    """Were other activations dropped on other ranks, their losses would part at once."""
    for index in range(len(ON_TWO), len(ON_TWO) + len(DROPPED)):
        first, second = (answers[index] for answers in on_two)
        assert first["losses"] == second["losses"]
        assert first["difference"] > 1e-6, "nothing was dropped"
        assert first["calls"] == first["expected"]


@pytest.mark.parametrize("scheme", [*SPLITS, *HYBRIDS])
def test_a_group_of_one_is_serial_and_sends_nothing(scheme: str) -> None:
    (answer,) = against_serial(
        World(Alone(), 0, torch.device("cpu")),
        [{"scheme": scheme, "model": "lenet", "mesh": Mesh.positional(1, 1, 1)}],
    )
    assert answer["difference"] < 1e-12
    assert answer["calls"] == answer["expected"] == {}


def test_operators_are_the_transposes_that_autograd_of_the_undivided_would_use(
    on_four: list[dict[str, Any]],
) -> None:
    assert [answers["operators"] for answers in on_four] == [[]] * 4


def test_rows_split_anyhow_give_the_undivided_convolution_and_pool(on_four: list[dict[str, Any]]) -> None:
    assert [answers["windows"] for answers in on_four] == [[]] * 4


def test_filter_parallel_volume_of_alexnet_is_the_papers() -> None:
    """SUM_{l>=2} |x_l| = 0.205 M elements per sample at 224 x 224, gathered and scattered once each."""
    config = config_of(
        2,
        scheme="mp.filter",
        mesh=Mesh.positional(1, 2, 1),
        model="alexnet",
        input_shape=(3, 224, 224),
        num_classes=1000,
    )
    job = plan(config)
    calls = find_scheme("mp.filter").traffic(job, 0)
    by_kind = {
        kind: sum(one.bytes * one.count for one in calls if one.collective == kind and one.what != "output")
        for kind in ("all_gather", "reduce_scatter")
    }
    maps = ((64, 27), (192, 13), (384, 13), (256, 13))  # inputs of conv2 to conv5: maps, height and width
    right = sum(channels * size * size for channels, size in maps) + 256 * 6 * 6 + 4096 + 4096
    assert round(right / 1e6, 3) == 0.205
    assert by_kind == {"all_gather": right * 8 * 8, "reduce_scatter": right * 8 * 8}


@pytest.mark.parametrize(
    ("scheme", "model", "parts", "line"),
    [
        (
            "mp.filter",
            "lenet",
            4,
            "mp.filter: conv1 has 6 output maps, which 4 ranks cannot share; tp=2 would do",
        ),
        (
            "mp.filter",
            "smallcnn",
            3,
            "mp.filter: conv1 has 16 output maps, which 3 ranks cannot share; tp=2 would",
        ),
        (
            "mp.channel",
            "lenet",
            4,
            "mp.channel: conv1 has 6 output maps, which 4 ranks cannot share; tp=2 would do",
        ),
        (
            "mp.fc_tp",
            "smallcnn",
            3,
            "mp.fc_tp: fc4 has 128 outputs, which 3 ranks cannot share; tp=2 would do",
        ),
        ("mp.spatial", "mlp", 2, "mp.spatial: mlp has no convolution whose rows could be split"),
        (
            "mp.spatial",
            "smallcnn",
            17,
            "mp.spatial: conv1 has 16 rows, too few for 17 ranks; tp=16 would do",
        ),
        ("hy.filter_dp", "lenet", 4, "hy.filter_dp: conv1 has 6 output maps, which 4 ranks cannot share"),
    ],
)
def test_a_layer_that_does_not_divide_is_named_with_what_would(
    scheme: str, model: str, parts: int, line: str
) -> None:
    with pytest.raises(BenchError) as refused:
        plan(config_of(parts, scheme=scheme, model=model, mesh=Mesh.positional(1, parts, 1)))
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_channel_parallel_does_not_ask_the_last_layer_to_divide() -> None:
    plan(config_of(4, scheme="mp.channel", model="smallcnn", mesh=Mesh.positional(1, 4, 1), num_classes=10))
    with pytest.raises(BenchError, match="fc5 has 10 outputs, which 4 ranks cannot share; tp=2 would do"):
        plan(
            config_of(4, scheme="mp.filter", model="smallcnn", mesh=Mesh.positional(1, 4, 1), num_classes=10)
        )


def test_model_schemes_refuse_data_parts_and_modifiers() -> None:
    with pytest.raises(BenchError, match=r"mp\.filter splits tp; dp must be 1 in mesh dp=2,tp=2"):
        plan(config_of(4, scheme="mp.filter", mesh=Mesh.positional(2, 2, 1)))
    with pytest.raises(BenchError, match=r"mp\.filter cannot take"):
        plan(config_of(4, scheme="mp.filter", mesh=Mesh.positional(1, 4, 1), modifiers=(Modifier("fp16"),)))


@settings(max_examples=300, deadline=None)
@given(
    num_ranks=st.integers(1, 6),
    num_rows=st.integers(1, 40),
    window=st.builds(
        RowExtent, st.integers(1, 7), st.integers(1, 4), padding=st.integers(0, 8), dilation=st.integers(1, 2)
    ),
)
def test_halo_is_what_the_windows_see_and_no_row_more(
    num_ranks: int, num_rows: int, window: RowExtent
) -> None:
    if num_rows + 2 * window.padding < window.reach:
        return
    halo = Halo.of(num_rows, window, num_ranks)
    for rank, out in enumerate(split_rows(window.out_rows(num_rows), num_ranks)):
        if not out.num:
            continue
        first = out.first * window.stride - window.padding
        seen = range(first, (out.end - 1) * window.stride - window.padding + window.reach)
        needed, (above, below) = halo.needed[rank], halo.padding[rank]
        assert list(range(needed.first, needed.end)) == [row for row in seen if 0 <= row < num_rows]
        assert above == sum(row < 0 for row in seen)
        assert below == sum(row >= num_rows for row in seen)
        arriving = [halo.sent(sender, rank) for sender in range(num_ranks)]
        assert [row for rows in arriving for row in range(rows.first, rows.end)] == list(
            range(needed.first, needed.end)
        )
