"""Ranks in groups: by host, and by coordinate along the axes of the mesh."""

from __future__ import annotations

from pathlib import Path

from perfscope.analysis.rank_groupings import HOST, rank_groupings
from perfscope.analysis.run import analyze_run
from perfscope.runners.mesh import Mesh
from tests.support.pipeline_run import pipeline_run
from tests.support.pipelines import gpipe
from tests.support.synthetic_run import SyntheticRun
from tests.unit.analysis.pipeline.test_analyze import steps_of


def groups_of(run: SyntheticRun) -> dict[str, dict[int, int]]:
    return {grouping.by: dict(grouping.group_of) for grouping in rank_groupings(run.read())}


def test_ranks_of_two_hosts_are_grouped_by_host_and_those_of_one_are_not(tmp_path: Path) -> None:
    two, one = SyntheticRun(tmp_path / "two"), SyntheticRun(tmp_path / "one")
    for rank in range(4):
        two.rank(rank, host=f"node{rank // 2}")
        one.rank(rank)
    [grouping] = rank_groupings(two.read())
    assert (grouping.by, grouping.names) == (HOST, ("node0", "node1"))
    assert grouping.group_of == {0: 0, 1: 0, 2: 1, 3: 1}
    assert rank_groupings(one.read()) == ()


def test_ranks_of_a_bench_run_have_the_coordinates_of_its_mesh(tmp_path: Path) -> None:
    mesh = Mesh.parse("dp=2,pp=2,tp=2")
    sizes = {str(axis): size for axis, size in mesh.axes.items()}
    run = SyntheticRun(tmp_path, scheme={"name": "mesh", "mesh": sizes, "num_ranks": 8})
    for rank in range(8):
        run.rank(rank)
    assert groups_of(run) == {
        axis.value: {rank: mesh.index(axis, rank) for rank in range(8)} for axis in mesh.axes
    }


def test_the_mesh_of_the_program_groups_only_where_it_holds_all_ranks(tmp_path: Path) -> None:
    whole, half = SyntheticRun(tmp_path / "whole"), SyntheticRun(tmp_path / "half")
    for rank in range(6):
        mesh = {"axes": ["replicate", "shard"], "shape": [2, 3]}
        whole.rank(rank, world_size=6, mesh=mesh)
        half.rank(rank, world_size=12, mesh=mesh)
    assert groups_of(whole) == {
        "replicate": {rank: rank // 3 for rank in range(6)},
        "shard": {rank: rank % 3 for rank in range(6)},
    }
    assert groups_of(half) == {}


def test_an_axis_that_parts_every_rank_from_all_others_is_no_group(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank in range(2):
        run.rank(rank, world_size=2, mesh={"axes": ["dp"], "shape": [2]})
    assert groups_of(run) == {}


def test_stages_that_no_mesh_names_come_from_the_recorded_pipeline(tmp_path: Path) -> None:
    orders = gpipe(2, 4)
    run = pipeline_run(tmp_path, {(0, 1): steps_of(orders), (2, 3): steps_of(orders)}).read()
    pipeline = analyze_run(run).pipeline
    assert rank_groupings(run) == ()
    [grouping] = rank_groupings(run, pipeline)
    assert (grouping.by, grouping.group_of) == ("pp", {0: 0, 1: 1, 2: 0, 3: 1})
