"""Axes of process groups on device meshes of any shape: named, inferred from calls, inferred from ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.group_axes import NAMELESS, CommGroup, GroupAxes, GroupAxis, GroupUse

Mesh = dict[str, int]  # outermost axis first
MEGATRON = {
    "dp": "DATA_PARALLEL_GROUP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
}
USES = {
    "dp": GroupUse(collectives={"all_reduce", "broadcast"}, has_buckets=True),
    "tp": GroupUse(collectives={"all_reduce", "all_gather"}, forward={"all_reduce"}),
    "pp": GroupUse(collectives={"send", "recv"}),
    "ep": GroupUse(
        collectives={"all_to_all", "all_gather"}, forward={"all_to_all"}, layers={"layers.1.experts"}
    ),
    "fsdp": GroupUse(collectives={"all_gather", "reduce_scatter"}, has_units=True),
    "cp": GroupUse(collectives={"send", "recv"}, forward={"send", "recv"}, layers={"layers.0.attention"}),
    "sp": GroupUse(collectives={"all_to_all"}, forward={"all_to_all"}, layers={"layers.0.self_attn"}),
}


def groups_of(mesh: Mesh) -> list[tuple[str, tuple[int, ...]]]:
    """Axis and ranks of every group of two ranks and more."""
    sizes = list(mesh.values())
    strides = [prod(sizes[place + 1 :]) for place in range(len(sizes))]
    return [
        (axis, tuple(rank + stride * part for part in range(size)))
        for (axis, size), stride in zip(mesh.items(), strides, strict=True)
        for rank in range(prod(sizes))
        if size > 1 and rank // stride % size == 0
    ]


def meshes(axes: Sequence[str]) -> st.SearchStrategy[Mesh]:
    """Up to three of the axes, in any order, of one to four parts."""
    return st.permutations(list(axes)).flatmap(
        lambda order: st.tuples(*(st.integers(1, 4) for _ in order[:3])).map(
            lambda sizes: dict(zip(order, sizes, strict=False))
        )
    )


def axes_of(mesh: Mesh, uses: dict[CommGroup, GroupUse], descriptions: dict[str, str]) -> GroupAxes:
    return GroupAxes(None, descriptions, uses, prod(mesh.values()))


@given(meshes(["dp", "tp", "pp", "cp", "ep"]), st.sampled_from(["mesh", "Megatron", "name"]))
def test_a_named_group_has_its_name_whatever_is_called_on_it(mesh: Mesh, style: str) -> None:
    groups = [
        (axis, CommGroup(f"{axis}:{number}" if style == "name" else str(number), ranks, len(ranks)))
        for number, (axis, ranks) in enumerate(groups_of(mesh))
    ]
    described = {group.name: f"mesh_{axis}" if style == "mesh" else MEGATRON[axis] for axis, group in groups}
    misleading = {group: USES["fsdp" if axis == "tp" else "tp"] for axis, group in groups}
    axes = axes_of(mesh, misleading, {} if style == "name" else described)
    for axis, group in groups:
        assert {axes.of(group, kind) for kind in ("all_reduce", "send", NAMELESS)} == {GroupAxis(axis)}


@given(meshes(list(USES)))
def test_an_unnamed_group_is_known_by_its_calls(mesh: Mesh) -> None:
    """Several groups of the same ranks (axes of one part are left out) differ by their calls alone."""
    groups = [
        (axis, CommGroup(str(number), ranks, len(ranks)))
        for number, (axis, ranks) in enumerate(groups_of(mesh))
    ]
    axes = axes_of(mesh, {group: USES[axis] for axis, group in groups}, {})
    for axis, group in groups:
        for kind in (*USES[axis].collectives, NAMELESS):
            assert axes.of(group, kind) == GroupAxis(axis, inferred=True)


@given(meshes(["dp", "tp"]))
def test_ranks_tell_tensor_from_data_parallelism_where_nothing_else_does(mesh: Mesh) -> None:
    use = GroupUse(collectives={"all_reduce"})
    groups = [CommGroup(str(number), ranks, len(ranks)) for number, (_, ranks) in enumerate(groups_of(mesh))]
    axes = axes_of(mesh, dict.fromkeys(groups, use), {})
    for group in groups:
        axis = axes.of(group, "all_reduce")
        if group.size == prod(mesh.values()):
            assert axis == GroupAxis("world")
        else:
            assert axis == GroupAxis(
                "tp" if group.members[1] == group.members[0] + 1 else "dp", inferred=True
            )


@given(st.integers(2, 4), st.integers(2, 4))
def test_experts_inside_data_parallelism(replicas: int, experts: int) -> None:
    world = tuple(range(replicas * experts))
    everyone = CommGroup("0", world, len(world))
    among = [CommGroup(str(1 + part), world[part * experts :][:experts], experts) for part in range(replicas)]
    axes = GroupAxes(
        None, {}, {everyone: USES["dp"], **dict.fromkeys(among, USES["ep"])}, world_size=len(world)
    )
    assert axes.of(everyone, "all_reduce") == GroupAxis("dp", inferred=True)
    assert {axes.of(group, "all_to_all") for group in among} == {GroupAxis("ep", inferred=True)}


@given(st.integers(2, 16), st.booleans(), st.sampled_from([(), ("embedding_bag",)]))
def test_a_group_that_serves_two_axes_is_divided_by_the_kind_of_call(
    ranks: int, is_listed: bool, layers: tuple[str, ...]
) -> None:
    """DLRM: gradients are data parallel, the exchange of embeddings over these ranks is not, nor is it ep."""
    group = CommGroup("default", tuple(range(ranks)) if is_listed else (), ranks)
    use = GroupUse(collectives={"all_reduce", "all_to_all", NAMELESS}, layers=set(layers), has_buckets=True)
    axes = GroupAxes(None, {}, {group: use}, ranks)
    assert axes.of(group, "all_reduce") == GroupAxis("dp", inferred=True)
    assert axes.of(group, "all_to_all") == axes.of(group, NAMELESS) == GroupAxis("world")


@given(
    st.sets(
        st.sampled_from(["all_reduce", "all_gather", "all_to_all", "send", "recv", "barrier", NAMELESS]),
        min_size=1,
    ),
    st.sets(st.sampled_from(["attn", "mlp", "emb"])),
    st.booleans(),
    st.booleans(),
    st.sets(st.integers(0, 15), max_size=6),
)
def test_every_kind_of_call_has_an_axis_with_a_name(
    kinds: set[str], layers: set[str], buckets: bool, units: bool, ranks: set[int]
) -> None:
    use = GroupUse(collectives=kinds, layers=layers, has_buckets=buckets, has_units=units)
    group = CommGroup("7", tuple(sorted(ranks)), len(ranks))
    axes = GroupAxes(None, {}, {group: use}, 16)
    assert all(axes.of(group, kind).name for kind in kinds)
    assert axes.of(group, "all_to_all").name != "ep" or (layers and "emb" not in layers)


@pytest.mark.parametrize(
    ("links", "axis"),
    [
        ({(0, 1), (1, 2), (2, 3)}, "pp"),
        ({(1, 0), (1, 2)}, "pp"),  # of one traced rank
        ({(0, 1), (1, 2), (2, 3), (3, 0)}, "pp"),  # interleaved stages
        ({(1, 0), (2, 0), (3, 0)}, "world"),  # a parameter server and its workers
        (set(), "pp"),  # a trace that does not name the other end
    ],
)
def test_messages_are_a_pipeline_only_between_neighbors(links: set[tuple[int, int]], axis: str) -> None:
    group = CommGroup("0", (0, 1, 2, 3), 4)
    axes = GroupAxes(None, {}, {group: GroupUse(collectives={"send", "recv"}, links=links)}, 4)
    assert axes.of(group, "send").name == axis


def test_messages_of_parameters_are_data_parallelism() -> None:
    group = CommGroup("0", (0, 1, 2, 3), 4)
    use = GroupUse(collectives={"send", "recv"}, links={(0, 1), (1, 2)}, sends_parameters=True)
    axes = GroupAxes(None, {}, {group: use}, 4)
    assert axes.of(group, "send") == axes.of(group, "recv") == GroupAxis("dp", inferred=True)


def test_all_ranks_are_no_part_of_a_mesh_axis_that_has_the_inferred_name() -> None:
    world, experts = CommGroup("0", (0, 1, 2, 3), 4), CommGroup("1", (0, 2), 2)
    uses = {world: USES["dp"], experts: USES["dp"]}
    assert GroupAxes(None, {"1": "mesh_dp"}, uses, 4).of(world, "all_reduce") == GroupAxis("world")
    assert GroupAxes(None, {"1": "mesh_ep"}, uses, 4).of(world, "all_reduce").name == "dp"


@pytest.mark.parametrize(
    ("layers", "axis"),
    [
        ({"0.self_attention", "1.self_attention"}, "cp"),
        ({"0.self_attention", "0.mlp"}, "tp"),  # sequence parallelism gathers activations in both
    ],
)
def test_gathers_in_attention_alone_are_context_parallelism(layers: set[str], axis: str) -> None:
    use = GroupUse(
        collectives={"all_gather", "all_reduce"}, forward={"all_gather"}, forward_layers=layers
    )  # gloo adds up what it scatters in the backward pass
    group = CommGroup("3", (0, 2), 2)
    assert GroupAxes(None, {}, {group: use}, 4).of(group, "all_reduce") == GroupAxis(axis, inferred=True)
