"""Names and sizes of collectives, however a trace spells them."""

from __future__ import annotations

import pytest

from perfscope.ingest.collectives import Collective, ProcessGroups, canonical, from_kernel_name


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::reduce_scatter_tensor_coalesced_", "reduce_scatter"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::recv_any_source_", "recv"),
        ("gloo:barrier", "barrier"),
        ("gloo:send", "send"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("broadcast", "broadcast"),
        ("gloo:something_else", None),
    ],
)
def test_canonical_names(spelling: str, expected: str | None) -> None:
    assert canonical(spelling) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", None),
        ("ncclDevKernel_Generic(x)", None),
        ("void vllm::cross_device_reduce_2stage<__half, 4>(x)", "all_reduce"),
    ],
)
def test_kernel_names(name: str, expected: str | None) -> None:
    assert from_kernel_name(name) == expected


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("all_reduce", (100, None), (100, 100)),
        ("broadcast", (None, 100), (100, 100)),
        ("all_gather", (100, None), (100, 400)),
        ("all_gather", (None, 400), (100, 400)),
        ("reduce_scatter", (400, None), (400, 100)),
        ("reduce_scatter", (None, 100), (400, 100)),
        ("gather", (100, None), (100, None)),
        ("all_gather", (None, None), (None, None)),
    ],
)
def test_the_other_size_follows_from_the_group(
    name: str, sizes: tuple[int | None, int | None], expected: tuple[int | None, int | None]
) -> None:
    found = Collective(name=name, group_size=4, in_bytes=sizes[0], out_bytes=sizes[1]).completed()
    assert (found.in_bytes, found.out_bytes) == expected


def test_an_inner_account_is_filled_from_the_outer_one_of_the_same_collective() -> None:
    outer = Collective(name="all_reduce", group="3", group_size=8, in_bytes=7)
    assert Collective(dtype="float32").filled_from(outer) == Collective(
        name="all_reduce", group="3", group_size=8, in_bytes=7, dtype="float32"
    )
    other = Collective(name="broadcast")
    assert other.filled_from(outer) == other


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("all_gather", (100, 800), 8),
        ("reduce_scatter", (800, 100), 8),
        ("all_gather", (100, 150), None),
        ("all_gather", (None, 800), None),
        ("all_to_all", (100, 800), None),
    ],
)
def test_the_size_of_the_group_follows_from_both_sizes(
    name: str, sizes: tuple[int | None, int | None], expected: int | None
) -> None:
    collective = Collective(name=name, in_bytes=sizes[0], out_bytes=sizes[1])
    assert collective.completed().group_size == expected
    are_unlisted = expected is not None  # a group of 8 in a world of 16
    assert ProcessGroups([], 16, [collective]).are_unlisted is are_unlisted
    assert not ProcessGroups([], 8, [collective]).are_unlisted
    assert not ProcessGroups([], None, [collective]).are_unlisted


def test_a_named_group_gets_its_size_from_the_list_of_groups() -> None:
    groups = ProcessGroups(
        [{"pg_name": "5", "ranks": [0, 2, 4]}, {"pg_name": "6", "pg_size": 2}], world_size=6
    )
    assert groups.complete(Collective(name="send", group="5")).group_size == 3
    assert groups.complete(Collective(name="send", group="nowhere")).group_size is None
