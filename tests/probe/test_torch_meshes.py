"""Axes of device meshes whose groups do not tell their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perfscope.probes.torch import describe
from perfscope.probes.torch.meshes import Meshes

torch = pytest.importorskip("torch")
dist = torch.distributed
pytestmark = pytest.mark.torch


def call(place: str, function: Callable[..., None], *args: Any) -> None:
    function(*args)


@pytest.fixture
def meshes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meshes]:
    """Watched, with a process group of one in this process."""
    kind = dist.device_mesh.DeviceMesh
    monkeypatch.setattr(kind, "__init__", kind.__init__)  # put back afterwards
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    meshes = Meshes()
    meshes.install(dist.device_mesh, call)
    yield meshes
    dist.destroy_process_group()


def test_the_default_group_is_the_axis_of_a_mesh_over_all_ranks(meshes: Meshes) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    name = mesh.get_group().group_name
    assert meshes.axes() == {name: "tp"}
    (row,) = describe.groups(meshes.axes())["groups"]
    assert row["desc"] == "mesh_tp"
    del mesh
    assert meshes.axes() == {name: "tp"}  # what is known once stays known
    meshes.forget()
    assert meshes.axes() == {}
    (row,) = describe.groups({})["groups"]
    assert row["desc"] != "mesh_tp"


def test_a_group_that_is_two_axes_has_the_name_of_none(meshes: Meshes) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert len(mesh.get_all_groups()) == 2
    assert meshes.axes() == {}


def test_a_mesh_of_groups_that_exist(meshes: Meshes) -> None:
    group = dist.new_group([0])
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu", mesh_dim_names=("pp",))
    assert mesh.ndim == 1 and meshes.axes() == {group.group_name: "pp"}


def test_a_mesh_without_names_tells_nothing(meshes: Meshes) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    assert mesh.ndim == 1 and meshes.axes() == {}
