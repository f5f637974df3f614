"""Traces that the installed torch records here and now, against what torch itself knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ingest_traces import Ingested, ingest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

Step = Callable[[], None]


def record(directory: Path, step: Step, **options: Any) -> Ingested:
    """Profile `step` and ingest the trace."""
    path = directory / "trace.json"
    step()
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], record_shapes=True, **options) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    return ingest(directory / "run", path)


def flops_by_torch(step: Step) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


# Counted by torch's counter, which knows matrix products, convolutions and attention only.
COUNTED = ("mm", "bmm", "addmm", "linear", "matmul", "conv", "attention")


def modelled(found: Ingested) -> int:
    return sum(row["flops"] or 0 for row in found.rows if any(word in row["name"] for word in COUNTED))


def network(*layers: Any, shape: tuple[int, ...]) -> Step:
    model = torch.nn.Sequential(*layers)
    data = torch.randn(*shape, requires_grad=True)

    def step() -> None:
        model(data).square().mean().backward()

    return step


def networks() -> dict[str, Callable[[], Step]]:
    nn = torch.nn
    return {
        "linear": lambda: network(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), shape=(64, 16)),
        "linear 3d": lambda: network(
            nn.Linear(16, 32, bias=False), nn.GELU(), nn.Linear(32, 8), shape=(4, 9, 16)
        ),
        "conv2d": lambda: network(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2),
            shape=(2, 3, 16, 16),
        ),
        "conv1d dilated": lambda: network(nn.Conv1d(4, 8, 5, dilation=2, padding=3), shape=(2, 4, 40)),
        "conv3d": lambda: network(nn.Conv3d(2, 4, 3), shape=(2, 2, 8, 8, 8)),
        "conv transposed": lambda: network(
            nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), shape=(2, 4, 8, 8)
        ),
        "depthwise forward": lambda: forward_only(nn.Conv2d(8, 16, 3, groups=8), (2, 8, 12, 12)),
        "matmul": batched_matmul,
        "attention": lambda: forward_only(
            nn.MultiheadAttention(32, 4, batch_first=True), (2, 10, 32), copies=3
        ),
    }


def batched_matmul() -> Step:
    left, right = torch.randn(3, 1, 4, 5), torch.randn(2, 5, 6)

    def step() -> None:
        torch.matmul(left, right)

    return step


def forward_only(module: Any, shape: tuple[int, ...], copies: int = 1) -> Step:
    data = torch.randn(*shape)

    def step() -> None:
        module(*[data] * copies)

    return step


@pytest.mark.parametrize("name", list(networks()) if torch else [])
def test_flops_of_real_traces_equal_torchs_own_counter(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = networks()[name]()
    found = record(tmp_path, step)
    expected = flops_by_torch(step)
    assert expected > 0
    assert modelled(found) == expected


def test_attention_kernel_and_its_backward(tmp_path: Path) -> None:
    query, key, value = (torch.randn(2, 4, length, 16, requires_grad=True) for length in (24, 32, 32))

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()

    found = record(tmp_path, step)
    # torch's counter does not know the CPU kernel. By hand: 2 products forward, 5 backward.
    product = 2 * (2 * 4) * 24 * 32 * 16
    assert modelled(found) == (2 + 5) * product


def test_modules_of_python_stacks_become_layers_forward_and_backward(tmp_path: Path) -> None:
    class Block(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)

        def forward(self, data: Any) -> Any:
            return self.fc(data).relu()

    model = torch.nn.Sequential(Block(), Block())
    data = torch.randn(4, 8)

    def step() -> None:
        model(data).sum().backward()

    found = record(tmp_path, step, with_stack=True)
    assert "layers from the nn.Module frames of the Python stacks" in found.summary.notes
    linear = {row["layer"] for row in found.rows if row["name"] == "aten::linear"}
    assert linear == {"Sequential_0.Block_0.Linear_0", "Sequential_0.Block_1.Linear_1"}
    products = {
        row["layer"] for row in found.rows if row["name"] == "aten::mm" and row["phase"] == "backward"
    }
    assert products == linear
    assert found.summary.events_skipped > found.summary.events_kept


def test_checkpointed_layers_recompute_in_the_backward_phase(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    layers = {name: torch.nn.Linear(8, 8) for name in ("a", "b")}
    data = torch.randn(4, 8, requires_grad=True)

    def run(value: Any) -> Any:
        for name, layer in layers.items():
            with torch.profiler.record_function(f"perfscope.layer:{name}"):
                value = layer(value)
        return value.sin()

    for reentrant in (False, True):
        folder = tmp_path / str(reentrant)
        folder.mkdir()

        def step(how: bool = reentrant) -> None:
            checkpoint(run, data, use_reentrant=how).sum().backward()

        found = record(folder, step)
        linear = sorted((row["phase"], row["layer"]) for row in found.rows if row["name"] == "aten::linear")
        assert linear == [("backward", "a"), ("backward", "b"), ("forward", "a"), ("forward", "b")]
        products = {
            row["layer"] for row in found.rows if row["name"] == "aten::mm" and row["phase"] == "backward"
        }
        assert products == {"a", "b"}, reentrant


def test_a_python_autograd_function_is_compute_on_both_sides(tmp_path: Path) -> None:
    class Double(torch.autograd.Function):  # type: ignore[misc, name-defined, unused-ignore]
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    data = torch.randn(4, requires_grad=True)

    def step() -> None:
        Double.apply(data).sum().backward()

    found = record(tmp_path, step)
    assert (found.one("Double")["kind"], found.one("DoubleBackward")["kind"]) == ("compute", "compute")
    assert found.one("DoubleBackward")["phase"] == "backward"
    assert {row["phase"] for row in found.named("aten::mul")} == {"other", "backward"}


def test_times_equal_the_decimal_text_of_the_trace(tmp_path: Path) -> None:
    from decimal import Decimal

    def step() -> None:
        torch.randn(8, 8).relu()

    found = record(tmp_path, step)
    raw = json.loads((tmp_path / "trace.json").read_text(), parse_float=Decimal)
    expected = {
        (event["name"], int(event["ts"] * 1000) + raw["baseTimeNanoseconds"], int(event["dur"] * 1000))
        for event in raw["traceEvents"]
        if event.get("cat") == "cpu_op"
    }
    assert {(row["name"], row["start_ns"], row["dur_ns"]) for row in found.rows} <= expected
