"""Codecs: what they promise (docs/schemes.md prints it) holds, in one process and on real ranks.

One process: P ranks are threads that meet in a fake of the two collectives that codecs use; real: gloo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from perfscope.runners import carriers  # noqa: E402
from perfscope.runners.comm import Call, Group, Ledger  # noqa: E402
from perfscope.runners.compression.gathering import BLOCK  # noqa: E402
from perfscope.runners.compression.int8 import Int8Exchange  # noqa: E402
from perfscope.runners.compression.onebit import OneBitExchange  # noqa: E402
from perfscope.runners.compression.powersgd import PowerSgdExchange, squarest  # noqa: E402
from perfscope.runners.compression.registry import (  # noqa: E402
    COMPRESSIONS,
    check_modifier,
    check_modifiers,
    make_exchange,
)
from perfscope.runners.compression.sparse import (  # noqa: E402
    MsTopKExchange,
    TopKExchange,
    choose_by_threshold,
    find_thresholds,
    num_kept,
)
from perfscope.runners.config import BenchConfig, BenchError, Modifier, parse_scheme  # noqa: E402
from perfscope.runners.exchange import DenseExchange, Exchange  # noqa: E402
from tests.runners.compression_cases import SIZES, config_for, gradient, residual_of  # noqa: E402
from tests.runners.ranks import run_ranks  # noqa: E402

# Half a unit in the last place of 1.0: the largest relative error of one rounding.
UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# Half the distance of the smallest numbers: what one rounding loses of a value too small to be normal.
SMALLEST_HALF = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}

CODECS = ["fp16", "bf16", "int8", "onebit", "topk(0.05)", "mstopk(0.05)", "powersgd(2)"]
WITH_FEEDBACK = [one for one in CODECS if one not in ("fp16", "bf16")]


# --- ranks as threads -----------------------------------------------------------------------------------


class Meeting:
    """Stands in for torch's group: every rank of it calls with its own tensors, in the same order."""

    def __init__(self, num_ranks: int) -> None:
        self.slots: list[Any] = [None] * num_ranks
        self.barrier = Barrier(num_ranks, timeout=10)

    def meet(self, index: int, value: Any, use: Callable[[list[Any]], object]) -> None:
        self.slots[index] = value
        self.barrier.wait()
        seen = list(self.slots)
        self.barrier.wait()
        use([one.clone() for one in seen])
        self.barrier.wait()


Place = tuple[Meeting, int]


def _fake_reduce(tensor: Any, op: Any, group: Place, async_op: bool) -> Any:
    meeting, index = group
    meeting.meet(index, tensor.clone(), lambda all_: tensor.copy_(sum(all_[1:], all_[0])))
    return SimpleNamespace(wait=lambda: None)


def _fake_gather(out: Any, part: Any, group: Place, async_op: bool) -> Any:
    meeting, index = group
    meeting.meet(index, part, lambda all_: out.copy_(torch.cat(all_).view_as(out)))
    return SimpleNamespace(wait=lambda: None)


@contextmanager
def fake_collectives() -> Iterator[None]:
    dist = SimpleNamespace(all_reduce=_fake_reduce, ReduceOp=SimpleNamespace(SUM=None))
    with patch.object(carriers, "dist", dist), patch.object(carriers, "_all_gather_single", _fake_gather):
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def together(
    pool: ThreadPoolExecutor, exchanges: Sequence[Exchange], steps: list[list[Any]]
) -> list[list[Any]]:
    """steps[t][rank] are the gradients; the means by rank and step."""
    meeting, size = Meeting(len(exchanges)), len(exchanges)

    def one_rank(index: int) -> list[Any]:
        group = Group("data", tuple(range(size)), index, (meeting, index), Ledger())
        return [exchanges[index].start("w", step[index].clone(), group).wait().clone() for step in steps]

    with fake_collectives():
        return [one.result() for one in [pool.submit(one_rank, index) for index in range(size)]]


def _kept(exchanges: list[Exchange]) -> Any:
    """Mean of the ranks' residuals."""
    group = Group("data", tuple(range(len(exchanges))), 0, None, Ledger())
    kept: list[Any] = [residual_of(one, "w", group) for one in exchanges]
    return sum(kept) / len(kept)


@st.composite
def gradients(draw: Any, dtype: Any = torch.float64) -> list[list[Any]]:
    """Some steps of gradients of 2 to 4 ranks: any size, zeros, ties and many decades among them."""
    num_ranks, numel, num_steps = (draw(st.integers(*one)) for one in ((2, 4), (1, 2300), (1, 4)))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "decades", "ties", "sparse"]))
    found = torch.randn(num_steps, num_ranks, numel, generator=random, dtype=torch.float64)
    if kind == "decades":
        found *= 10 ** (torch.rand(found.shape, generator=random, dtype=torch.float64) * 16 - 12)
    elif kind == "ties":
        found = found.round()
    elif kind == "sparse":
        found *= torch.rand(found.shape, generator=random) < 0.1
    return [list(step) for step in found.to(dtype)]


# --- criteria, in one process ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", WITH_FEEDBACK)
@settings(max_examples=25, deadline=None)
@given(steps=gradients(), seed=st.integers(0, 99))
def test_what_is_applied_and_what_is_kept_add_up_to_the_true_means(
    codec: str, pool: ThreadPoolExecutor, steps: list[list[Any]], seed: int
) -> None:
    exchanges = [make_exchange(config_for(codec, seed)) for _ in steps[0]]
    means = together(pool, exchanges, steps)
    for other in means[1:]:
        assert all(torch.equal(a, b) for a, b in zip(means[0], other, strict=True)), "replicas must not drift"
    truth = sum(sum(step) / len(step) for step in steps)
    scale = max(float(one.abs().max()) for step in steps for one in step) * len(steps)
    dense = [sent.bytes for sent in exchanges[0].sends(truth.numel(), 8, len(steps[0]), "w")]
    went_dense = codec.startswith("powersgd") and dense == [8 * truth.numel()]
    kept = 0 if went_dense else _kept(exchanges)
    assert float((sum(means[0]) + kept - truth).abs().max()) <= 1e-12 * scale + 1e-300


@pytest.mark.parametrize("codec", ["fp16", "bf16"])
@settings(max_examples=25, deadline=None)
@given(steps=gradients())
def test_a_cast_errs_by_no_more_than_its_roundings(
    codec: str, pool: ThreadPoolExecutor, steps: list[list[Any]]
) -> None:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[codec]
    means = together(pool, [make_exchange(config_for(codec)) for _ in steps[0]], steps)[0]
    for mean, step in zip(means, steps, strict=True):
        assert _cast_bound_holds(mean, step, dtype)


def _cast_bound_holds(mean: Any, ranks: list[Any], dtype: Any) -> bool:
    num = len(ranks)
    truth = sum(one.double() for one in ranks) / num
    magnitude = sum(one.double().abs() for one in ranks) / num
    bound = 1.01 * num * UNIT_ROUNDOFF[dtype] * magnitude + num * SMALLEST_HALF[dtype]
    return bool(((mean.double() - truth).abs() <= bound).all())


def test_a_mean_that_fits_half_precision_does_not_overflow_as_a_sum(pool: ThreadPoolExecutor) -> None:
    step = [torch.full((3,), 6e4, dtype=torch.float32) for _ in range(4)]
    [mean, *_] = together(pool, [make_exchange(config_for("fp16")) for _ in step], [step])[0]
    assert torch.allclose(mean, step[0], rtol=2**-9)
    assert not torch.isfinite(torch.stack(step).half().sum(0)).any()  # as a plain sum it would
    alone = [torch.full((3,), 1e5 if rank == 0 else 0.0) for rank in range(4)]
    [mean, *_] = together(pool, [make_exchange(config_for("fp16")) for _ in alone], [alone])[0]
    assert torch.allclose(mean, torch.full((3,), 25e3), rtol=2**-9)


@settings(max_examples=40, deadline=None)
@given(steps=gradients())
def test_int8_errs_by_half_a_scale_per_element(steps: list[list[Any]]) -> None:
    for dtype, slack in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        for flat in (one.to(dtype) for step in steps for one in step):
            residual = torch.zeros_like(flat)
            scales, numbers = Int8Exchange().encode(flat, residual, ())
            assert numbers.dtype == torch.int8 and numbers.numel() == flat.numel()
            half = scales.repeat_interleave(BLOCK)[: flat.numel()] / 2
            assert bool((residual.abs() <= half * (1 + slack)).all())
            top = torch.stack([one.abs().max() for one in flat.split(BLOCK)])
            assert torch.allclose(scales, (top / 127).clamp_min(torch.finfo(dtype).tiny), rtol=1e-6, atol=0)


@settings(max_examples=40, deadline=None)
@given(steps=gradients())
def test_onebit_keeps_what_adds_up_to_nothing_on_either_side_of_zero(steps: list[list[Any]]) -> None:
    for flat in (one.to(torch.float64) for step in steps for one in step):
        residual = torch.zeros_like(flat)
        parts = OneBitExchange().encode(flat, residual, ())
        assert sum(part.numel() * part.element_size() for part in parts) == (
            OneBitExchange().message_bytes(flat.numel(), 8)
        )
        decoded = torch.zeros_like(flat)
        OneBitExchange().add_decoded(decoded, parts)
        assert torch.allclose(decoded + residual, flat, rtol=1e-12, atol=1e-12 * float(flat.abs().max()))
        for kept, values in zip(residual.split(BLOCK), flat.split(BLOCK), strict=True):
            bound = 1e-10 * float(values.abs().sum())
            assert all(abs(float(kept[side].sum())) <= bound for side in (values >= 0, values < 0))


@settings(max_examples=60, deadline=None)
@given(steps=gradients(), share=st.sampled_from([0.001, 0.01, 0.07, 0.3, 0.9, 1.0]))
def test_topk_sends_exactly_k_and_nothing_smaller_than_what_it_keeps(
    steps: list[list[Any]], share: float
) -> None:
    flat = steps[0][0]
    residual = torch.zeros_like(flat)
    values, positions = TopKExchange(share).encode(flat, residual, ())
    assert len(set(positions.tolist())) == len(values) == num_kept(share, flat.numel())
    assert torch.equal(flat[positions.long()], values)
    rest = torch.ones(flat.numel(), dtype=torch.bool)
    rest[positions.long()] = False
    if rest.any():
        assert float(values.abs().min()) >= float(flat[rest].abs().max())
    assert torch.equal(residual, torch.where(rest, flat, 0))


@settings(max_examples=80, deadline=None)
@given(steps=gradients(), share=st.sampled_from([0.001, 0.01, 0.07, 0.3, 0.9, 1.0]), seed=st.integers(0, 9))
def test_mstopk_sends_exactly_k_all_above_its_threshold_and_one_run_below(
    steps: list[list[Any]], share: float, seed: int
) -> None:
    for dtype in (torch.float64, torch.float32):
        magnitudes = steps[0][0].to(dtype).abs()
        k = num_kept(share, magnitudes.numel())
        found = find_thresholds(magnitudes, k)
        chosen = choose_by_threshold(magnitudes, k, found, Random(seed))
        assert len(set(chosen.tolist())) == len(chosen) == k
        above = magnitudes >= found.high
        assert int(above.sum()) == found.num_high <= k <= found.num_low
        picked = torch.zeros_like(above)
        picked[chosen] = True
        assert bool((picked | ~above).all()), "an element above the upper threshold is missing"
        assert bool((magnitudes[picked] >= found.low).all())
        between = ((magnitudes >= found.low) & ~above).nonzero().flatten().tolist()
        run = [between.index(one) for one in chosen.tolist() if not above[one]]
        assert run == list(range(run[0], run[0] + len(run))) if run else True


def test_mstopk_finds_the_true_top_k_of_distinct_magnitudes() -> None:
    flat = torch.randn(20000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = MsTopKExchange(0.01, 0).choose(flat, 200, ())
    assert set(chosen.tolist()) == set(flat.abs().topk(200).indices.tolist())


def test_mstopk_draws_the_same_runs_again_and_others_with_another_seed() -> None:
    ties = torch.ones(5000)

    def draws(seed: int, key: str) -> list[list[int]]:
        exchange = MsTopKExchange(0.01, seed)
        return [exchange.choose(ties, 50, (key, "data", 0)).tolist() for _ in range(3)]

    assert draws(3, "a") == draws(3, "a")
    assert len({str(draws(3, "a")), str(draws(4, "a")), str(draws(3, "b"))}) == 3
    assert draws(3, "a")[0] != draws(3, "a")[1]


@pytest.mark.parametrize(
    ("share", "numel", "k"), [(0.07, 100, 7), (0.01, 100, 1), (0.01, 101, 2), (1e-9, 5, 1), (1, 5, 5)]
)
def test_k_is_the_ceiling_of_the_share_as_written(share: float, numel: int, k: int) -> None:
    assert num_kept(share, numel) == k


@settings(max_examples=25, deadline=None)
@given(
    rank=st.integers(1, 3),
    true_rank=st.integers(0, 3),
    num_ranks=st.integers(2, 4),
    seed=st.integers(0, 2**20),
)
def test_powersgd_is_exact_for_gradients_of_its_rank(
    pool: ThreadPoolExecutor, rank: int, true_rank: int, num_ranks: int, seed: int
) -> None:
    """The mean has rank <= r; a step of lower rank (even of zeros) must not spoil the next one."""
    draw = torch.Generator().manual_seed(seed)
    columns = torch.randn(3, 40, true_rank, generator=draw, dtype=torch.float64)[:, :, :rank]
    rows = torch.randn(3, num_ranks, min(rank, true_rank), 30, generator=draw, dtype=torch.float64)
    steps = [
        [(c @ r).flatten() for r in own] for c, own in zip(columns, rows, strict=True)
    ]  # ranks share columns, so that the mean's rank is theirs
    exchanges: list[Exchange] = [PowerSgdExchange(rank, 0, {"w": (40, 30)}) for _ in range(num_ranks)]
    for mean, step in zip(together(pool, exchanges, steps)[0], steps, strict=True):
        truth = sum(step) / num_ranks
        assert float((mean - truth).abs().max()) <= 1e-8 * max(1.0, float(truth.abs().max()))


def test_powersgd_sees_a_direction_that_appears_after_zeros(pool: ThreadPoolExecutor) -> None:
    """Warm start from a zero gradient must not be a start of zeros."""
    late = torch.zeros(30, 30, dtype=torch.float64)
    late[17, 23] = 1
    steps = [[torch.zeros(900, dtype=torch.float64)] * 2, [late.flatten()] * 2]
    means = together(pool, [PowerSgdExchange(2, 0), PowerSgdExchange(2, 0)], steps)[0]
    assert torch.allclose(means[1], late.flatten(), atol=1e-12)


def test_powersgd_comes_closer_to_a_constant_gradient_than_one_step_does(pool: ThreadPoolExecutor) -> None:
    """Warm start is a power iteration: on a fixed matrix the best rank-r approximation is approached."""
    matrix = torch.randn(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, sizes, right = torch.linalg.svd(matrix)
    matrix = left @ torch.diag(sizes * 0.8 ** torch.arange(40)) @ right
    exchange = [PowerSgdExchange(2, 0), PowerSgdExchange(2, 0)]
    means = together(pool, exchange, [[matrix.flatten()] * 2] * 60)[0]
    first = float((means[0] - matrix.flatten()).norm())
    average = sum(means) / len(means)
    assert float((average - matrix.flatten()).norm()) < 0.2 * first


@pytest.mark.parametrize(
    ("numel", "shape"), [(1, (1, 1)), (2, (2, 1)), (9, (3, 3)), (10, (4, 3)), (12, (4, 3))]
)
def test_flat_buffers_become_nearly_square(numel: int, shape: tuple[int, int]) -> None:
    assert squarest(numel) == shape


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_no_number_stays_none(codec: str, bad: float, pool: ThreadPoolExecutor) -> None:
    step = [torch.randn(3000, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    step[1][123] = bad
    mean = together(pool, [make_exchange(config_for(codec)) for _ in step], [step])[0][0]
    assert not math.isfinite(float(mean[123]))
    if math.isnan(bad):
        assert math.isnan(float(mean[123]))


@pytest.mark.parametrize("codec", ["", *CODECS])
@pytest.mark.parametrize("numel", [1, 7])
def test_one_rank_sends_nothing_and_loses_nothing(codec: str, numel: int) -> None:
    group = Group("data", (0,), 0, None, Ledger())
    exchange, flat = make_exchange(config_for(codec)), torch.randn(numel)
    for _ in range(2):
        assert torch.equal(exchange.start("w", flat.clone(), group).wait(), flat)
    assert not exchange.sends(numel, 4, 1) and not group.ledger.calls


@pytest.mark.parametrize("codec", CODECS)
def test_waiting_twice_gives_the_same_mean(codec: str, pool: ThreadPoolExecutor) -> None:
    meeting = Meeting(2)

    def rank(index: int) -> bool:
        group = Group("data", (0, 1), index, (meeting, index), Ledger())
        pending = make_exchange(config_for(codec)).start("w", gradient(index, 0, 2000), group)
        first = pending.wait().clone()
        return bool(torch.equal(first, pending.wait()))

    with fake_collectives():
        assert all(one.result() for one in [pool.submit(rank, index) for index in range(2)])


def test_two_buffers_by_one_key_are_refused(pool: ThreadPoolExecutor) -> None:
    exchanges = [make_exchange(config_for("topk")) for _ in range(2)]
    together(pool, exchanges, [[torch.ones(10)] * 2])
    with pytest.raises(ValueError, match=r"buffer 'w' was 10 x torch\.float32 and is now 20"):
        together(pool, exchanges, [[torch.ones(20)] * 2])


# --- predictions and names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "sent"),
    [
        ("", [("all_reduce", 40_000)]),
        ("fp16", [("all_reduce", 20_000)]),
        ("bf16", [("all_reduce", 20_000)]),
        ("int8", [("all_gather", 4 * (10_000 + 4 * 10))]),
        ("onebit", [("all_gather", 4 * (1250 + 2 * 4 * 10))]),
        ("topk", [("all_gather", 4 * 100 * 8)]),
        ("mstopk(0.5%)", [("all_gather", 4 * 50 * 8)]),
        ("powersgd", [("all_reduce", 800), ("all_reduce", 800)]),
        ("powersgd(50)", [("all_reduce", 40_000)]),  # the factors would be no smaller
    ],
)
def test_bytes_follow_from_the_formulas(codec: str, sent: list[tuple[str, int]]) -> None:
    assert list(map(tuple, make_exchange(config_for(codec)).sends(10_000, 4, 4))) == sent


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("fp61", r"there is no modifier \+fp61; did you mean \+fp16\?"),
        ("zzz", r"there is no modifier \+zzz; there are \+fp16, .*\+prio"),
        ("fp16(2)", r"\+fp16 takes no number"),
        ("prio(1)", r"\+prio takes no number"),
        ("topk(0)", r"\+topk\(0\): the share of elements that is sent must be above 0 and at most 1"),
        ("topk(1.5)", r"must be above 0 and at most 1; write \+topk\(0\.01\)"),
        ("topk(nan)", r"must be above 0 and at most 1"),
        ("mstopk(-1)", r"must be above 0 and at most 1"),
        ("powersgd(0)", r"the rank of the factors must be a whole number, at least 1"),
        ("powersgd(2.5)", r"write \+powersgd\(2\)"),
        ("powersgd(inf)", r"whole number"),
        ("int8+topk", r"\+int8 and \+topk cannot both squeeze the same gradients"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(BenchError, match=line) as caught:
        make_exchange(config_for(text))
    assert "\n" not in str(caught.value)


def test_modifiers_that_are_no_codecs_leave_the_exchange_dense() -> None:
    check_modifier(Modifier("prio"))
    assert isinstance(make_exchange(config_for("prio")), DenseExchange)
    assert isinstance(make_exchange(config_for("prio+int8")), Int8Exchange)
    assert check_modifiers([Modifier("prio")]) is None


def test_numbers_survive_the_way_to_the_ranks_as_json() -> None:
    config = BenchConfig(scheme="serial", modifiers=parse_scheme("serial+powersgd(3)")[1])
    again = make_exchange(BenchConfig.from_json(config.to_json()))
    assert again.sends(10_000, 4, 2) == make_exchange(config).sends(10_000, 4, 2)
    assert make_exchange(BenchConfig(scheme="serial", modifiers=(Modifier("powersgd", 3),)))


def test_every_codec_explains_itself() -> None:
    names = [one.name for one in COMPRESSIONS]
    assert names == ["fp16", "bf16", "int8", "onebit", "topk", "mstopk", "powersgd"]
    for one in COMPRESSIONS:
        assert all((one.summary, one.volume, one.criterion, one.source)), one.name
        assert (one.default is None) == (one.number == "") == (one.range == "")
        assert one.default is None or one.allowed(one.default)


# --- real ranks -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 4])
def real(request: Any) -> list[dict[str, Any]]:
    """Everything that 2 and 4 gloo ranks found, in one start each."""
    return run_ranks(
        request.param, "tests.runners.compression_cases:everything", codecs=CODECS, steps=5, train_steps=50
    )


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("codec", CODECS)
def test_real_ranks_hold_the_criterion_and_the_foretold_bytes(
    real: list[dict[str, Any]], codec: str, dtype: str
) -> None:
    ranks = [one["exchanged"][codec, dtype] for one in real]
    for one in ranks:
        assert one["calls"] == one["foretold"] and one["calls"]
        assert all(isinstance(Call(*call), Call) for call in one["calls"])
    for key, numel in SIZES.items():
        applied = [one["applied"][key] for one in ranks]
        for other in applied[1:]:
            assert all(torch.equal(a, b) for a, b in zip(applied[0], other, strict=True))
        true = [
            [gradient(rank, step, numel, getattr(torch, dtype)) for rank in range(len(ranks))]
            for step in range(5)
        ]
        if codec in WITH_FEEDBACK:
            kept = sum(one["residual"][key] for one in ranks) / len(ranks)
            truth = sum(sum(step) / len(step) for step in true)
            scale = max(float(one.abs().max()) for step in true for one in step)
            tolerance = 1e-12 if dtype == "float64" else 1e-5
            assert float((sum(applied[0]) + kept - truth).abs().max()) <= tolerance * scale
        else:
            half = {"fp16": torch.float16, "bf16": torch.bfloat16}[codec]
            assert all(_cast_bound_holds(a, step, half) for a, step in zip(applied[0], true, strict=True))


@pytest.mark.torch
def test_codecs_that_draw_repeat_themselves(real: list[dict[str, Any]]) -> None:
    for one in real:
        for (codec, dtype), again in one["again"].items():
            for key in SIZES:
                first = one["exchanged"][codec, dtype]["applied"][key][:2]
                assert all(torch.equal(a, b) for a, b in zip(first, again["applied"][key], strict=True))


@pytest.mark.torch
@pytest.mark.parametrize("codec", CODECS)
def test_training_ends_in_the_loss_band_of_the_dense_exchange(real: list[dict[str, Any]], codec: str) -> None:
    weights = real[0]["trained"][codec][1]
    losses, dense = (
        [sum(step) / len(real) for step in zip(*(one["trained"][name][0] for one in real), strict=True)]
        for name in (codec, "")
    )
    before, there, here = (sum(one) / 10 for one in (dense[:10], dense[-10:], losses[-10:]))
    assert there < 0.5 * before, "the problem is too hard to tell anything"
    assert here < there + 0.1 * (before - there)
    for other in real[1:]:
        assert other["trained"][codec][1] == weights, "replicas must stay equal"
