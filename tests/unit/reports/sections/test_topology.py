"""The topology picture: what stands where, nothing on one another, nothing lost, damaged files survive."""

from __future__ import annotations

import copy
import itertools
import random
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.kernel_text import cpu_set
from perfscope.reports.drawing.page import paint
from perfscope.reports.drawing.shapes import Path, Rect, Text
from perfscope.reports.drawing.style import font_size, properties
from perfscope.reports.drawing.topology import (
    LETTER,
    NARROW,
    WIDE,
    Drawing,
    fitted,
    lay_out,
    page_svgs,
    paper_svg,
)
from perfscope.reports.model import Machine, Rail, TopologyPicture
from perfscope.reports.sections.links import paths_table
from perfscope.reports.sections.topology import topology_block
from perfscope.vocabulary.links import LinkClass
from tests.support.synthetic_topology import GIB, gpu_topology, knl_topology, topology_record, vm_topology

SIZES = (WIDE, NARROW, 760.0, 480.0)


def drawn(document: dict[str, object]) -> Machine:
    block = topology_block({"h": topology_record(document)})
    assert block is not None
    return block.machines[0]


def many_nodes() -> dict[str, object]:
    """Two sockets of four NUMA nodes, as EPYC in NPS4, and a node of CXL memory of no socket."""
    nodes: list[dict[str, object]] = []
    for node in range(9):
        distances = [
            10 if o == node else 12 if o // 4 == node // 4 and 8 not in (o, node) else 32 for o in range(9)
        ]
        nodes.append(
            {
                "node": node,
                "cpus": "" if node == 8 else f"{16 * node}-{16 * node + 15}",
                "memory_bytes": 64 * GIB,
                "distances": distances,
                "distance_nodes": list(range(9)),
                "kind": "memory_only" if node == 8 else "cpu",
                "package": None if node == 8 else node // 4,
            }
        )
    gpus = [
        {"id": f"gpu:{n}", "index": n, "vendor": "AMD", "name": "AMD Instinct MI250X", "numa_node": n}
        for n in range(8)
    ]
    links = [
        {
            "a": f"gpu:{n}",
            "b": f"gpu:{n + 1}",
            "class": "gpu_link",
            "kind": "NVLink",
            "path": "NV4",
            "num_links": 4,
            "peak_bytes_per_s": 100e9,
        }
        for n in range(0, 8, 2)
    ]
    return vm_topology() | {"numa_nodes": nodes, "gpus": gpus, "links": links, "sockets": 2}


KINDS = {
    "vm": vm_topology(),
    "gpu": gpu_topology(),
    "gpu, 8 ports": gpu_topology(num_nics=8),
    "knl": knl_topology(),
    "nps4": many_nodes(),
}


def test_mcdram_stands_under_the_cluster_that_is_nearest() -> None:
    (socket,) = drawn(knl_topology()).sockets
    assert [node.title for node in socket.nodes] == [f"NUMA node {n}" for n in range(4)]
    assert [node.near[0].title for node in socket.nodes] == [f"NUMA node {n}" for n in range(4, 8)]
    assert {node.near[0].kind for node in socket.nodes} == {"mcdram"}
    assert socket.nodes[0].near[0].lines == ("4.00 GiB MCDRAM",)
    assert [device.title for device in socket.nodes[1].devices] == ["hfi1_0/1"]


def test_devices_stand_at_their_numa_node_and_all_to_all_nvlink_is_one_rail() -> None:
    machine = drawn(gpu_topology())
    first, second = (socket.nodes[0] for socket in machine.sockets)
    assert [d.title for d in first.devices] == [
        "mlx5_0/1",
        "mlx5_1/1",
        "eno1",
        "GPU 0",
        "GPU 1",
        "GPU 2",
        "GPU 3",
    ]
    assert [d.title for d in second.devices if d.kind == "gpu"] == ["GPU 4", "GPU 5", "GPU 6", "GPU 7"]
    members = tuple(f"gpu:{n}" for n in range(8))
    title = "NVLink NV18, all to all, 450 GB/s each way"
    assert machine.rails == (Rail(title=title, link_class=LinkClass.GPU_LINK, members=members),)
    assert machine.between == "2.1× local"


def test_pairs_of_gpus_are_rails_of_their_own() -> None:
    assert [rail.members for rail in drawn(many_nodes()).rails] == [
        (f"gpu:{n}", f"gpu:{n + 1}") for n in range(0, 8, 2)
    ]


def test_a_device_whose_node_is_not_known_is_not_put_anywhere() -> None:
    document = gpu_topology()
    document["gpus"][0]["numa_node"] = None  # type: ignore[index]
    document["gpus"][1]["numa_node"] = -1  # type: ignore[index]
    machine = drawn(document)
    assert [device.title for device in machine.loose] == ["GPU 0", "GPU 1"]
    assert drawn(vm_topology() | {"gpus": [{"id": "gpu:0", "index": 0, "numa_node": -1}]}).loose == ()


def test_devices_of_a_machine_that_tells_no_numa_node_are_drawn_all_the_same() -> None:
    machine = drawn(gpu_topology() | {"numa_nodes": [], "packages": []})
    assert machine.sockets == ()
    assert len(machine.loose) == 13
    for width in SIZES:
        drawing = lay_out(machine, width)
        assert len(drawing.places) == 13
        assert all(box.x + box.width <= drawing.width for box in boxes(drawing))


def test_virtual_interfaces_and_those_behind_a_fabric_port_are_not_drawn_twice() -> None:
    devices = [d.title for s in drawn(vm_topology()).sockets for n in s.nodes for d in n.devices]
    assert devices == ["eth0"]
    document = gpu_topology()
    document["nics"].append({"id": "nic:ib0", "name": "ib0", "numa_node": 0, "virtual": False})  # type: ignore[attr-defined]
    assert drawn(document) == drawn(gpu_topology())


def test_equal_hosts_are_drawn_once_and_a_different_one_for_itself() -> None:
    hosts = {f"n{n}": gpu_topology(f"n{n}") for n in range(6)}
    for n, host in enumerate(hosts.values()):
        host["memory_bytes"] = 2048 * GIB - n * 4096  # what firmware keeps differs by pages
        host["gpus"][0]["uuid"] = f"GPU-{n}"  # type: ignore[index]
    documents = {**hosts, "login": vm_topology("login")}
    block = topology_block({host: topology_record(document) for host, document in documents.items()})
    assert block is not None
    assert [machine.title for machine in block.machines] == ["n0 and 5 more like it", "login"]


def boxes(drawing: Drawing) -> list[Rect]:
    return [shape for shape in drawing.all if isinstance(shape, Rect)]


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_boxes_do_not_overlap_and_stay_inside(kind: str, width: float) -> None:
    drawing = lay_out(drawn(KINDS[kind]), width)
    inner = [box for box in boxes(drawing) if box.look != "m-socket"]
    for one, other in itertools.combinations(inner, 2):
        apart = (
            one.x + one.width <= other.x
            or other.x + other.width <= one.x
            or one.y + one.height <= other.y
            or other.y + other.height <= one.y
        )
        assert apart, (one, other)
    for box in boxes(drawing):
        assert box.x >= 0
        assert box.x + box.width <= drawing.width + 0.01
        assert box.y + box.height <= drawing.height + 0.01


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_words_stay_in_the_picture_and_off_one_another(kind: str, width: float) -> None:
    drawing = lay_out(drawn(KINDS[kind]), width)
    places = []
    for label in (shape for shape in drawing.all if isinstance(shape, Text)):
        size = font_size(label.look)
        length = len(label.text) * size * LETTER
        left = label.x - (length / 2 if label.anchor == "middle" else 0)
        assert left >= -0.01, label
        assert left + length <= drawing.width + 1, label
        places.append((left, label.y - size * 0.7, left + length, label.y, label.text))
    for one, other in itertools.combinations(places, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_device_is_drawn_and_hangs_on_its_rail(kind: str, width: float) -> None:
    machine = drawn(KINDS[kind])
    drawing = lay_out(machine, width)
    devices = [d.id for s in machine.sockets for n in s.nodes for d in n.devices]
    assert sorted(drawing.places) == sorted(devices)
    ends = [path.runs[0][0] for path in drawing.links if path.look == "m-rail-gpu_link"]
    for rail in machine.rails:
        for member in rail.members:
            box = drawing.places[member]
            assert (box.x + box.width / 2, box.y + box.height) in ends


def test_lines_of_upper_gpus_pass_beside_the_lower_ones() -> None:
    drawing = lay_out(drawn(gpu_topology()), NARROW)
    for path in (shape for shape in drawing.all if isinstance(shape, Path) and "rail" in shape.look):
        for (x0, y0), (x1, y1) in itertools.pairwise(path.runs[0]):
            for box in drawing.places.values():
                vertical = x0 == x1 and box.x < x0 < box.x + box.width
                assert not (vertical and min(y0, y1) < box.y < max(y0, y1)), (path, box)


def test_pictures_are_well_formed_and_say_what_they_show() -> None:
    machine = drawn(gpu_topology())
    wide, narrow = page_svgs(machine, paint).split("\n")
    for text in (wide, narrow, paper_svg(machine)[0]):
        root = ET.fromstring(text)
        title = (
            root.find("title")
            if root.find("title") is not None
            else root.find("{http://www.w3.org/2000/svg}title")
        )
        assert title is not None
        assert "8 GPUs" in str(title.text)
    assert 'class="m-picture m-wide"' in wide
    assert "style=" not in wide + narrow


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_style_sheet_knows_every_look(kind: str) -> None:
    for shape in lay_out(drawn(KINDS[kind]), WIDE).all:
        assert isinstance(shape, (Rect, Path, Text))
        known = properties(shape.look)
        assert "font-size" in known if isinstance(shape, Text) else "stroke" in known, shape.look


def test_ways_between_devices_are_a_matrix() -> None:
    table = paths_table(topology_record(gpu_topology()))
    assert table is not None
    assert [column.title for column in table.columns][:3] == ["From", "GPU 0", "GPU 1"]
    assert table.rows[0][:3] == ("GPU 0", "·", "NV18")
    assert table.rows[7][-1] == "PIX"
    assert "PIX: over one PCIe switch" in table.caption
    assert paths_table(topology_record(vm_topology())) is None


def test_a_narrower_pcie_link_than_the_card_has_is_shown() -> None:
    document = gpu_topology()
    document["gpus"][2]["pcie"] |= {"width": 8, "speed_gt_s": 2.5}  # type: ignore[index]
    gpu = next(d for s in drawn(document).sockets for n in s.nodes for d in n.devices if d.id == "gpu:2")
    assert "PCIe 5.0 ×8 of 16" in gpu.lines


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_ranges_read_back(cpus: set[int]) -> None:
    assert cpu_set(",".join(map(str, sorted(cpus)))) == cpus


def test_cpu_ranges_from_a_damaged_file_do_not_fill_the_memory() -> None:
    assert cpu_set("0-99999999999,7,x-3,-") == {7}


def test_fitted_words_keep_within_their_width() -> None:
    assert fitted("NUMA node 12", 300, 12) == "NUMA node 12"
    cut = fitted("a long name of a device", 80, 12)
    assert cut.endswith("…")
    assert len(cut) * 12 * LETTER <= 80
    assert fitted("verylongdevicename_0001", 80, 12).startswith("…")


VALUES = st.one_of(
    st.none(), st.integers(-5, 9), st.floats(), st.text(max_size=4), st.lists(st.integers(), max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(KINDS)), st.integers(0, 2**32), st.lists(VALUES, min_size=1, max_size=6))
def test_a_damaged_topology_is_drawn_as_far_as_it_goes(kind: str, seed: int, values: list[object]) -> None:
    document, rng = copy.deepcopy(KINDS[kind]), random.Random(seed)
    for value in values:
        target: object = document
        while True:
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))  # type: ignore[arg-type]
            if not keys:
                break
            key = rng.choice(keys)
            inner = target[key]  # type: ignore[index]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
                target = inner
                continue
            target[key] = value  # type: ignore[index]
            break
    block = topology_block({"h": topology_record(document)})
    assert block is None or isinstance(block, TopologyPicture)
    for machine in block.machines if block else ():
        for width in (WIDE, NARROW):
            assert lay_out(machine, width).height > 0
        paper_svg(machine)
    paths_table(topology_record(document))
