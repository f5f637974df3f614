"""Why convolutions are split by hand: torch's DTensor gives wrong convolutions without saying so."""

from __future__ import annotations

from typing import Any

from tests.runners.ranks import run_ranks

# Placement of (samples, weight) along two ranks that torch 2.13 computes wrongly.
WRONG: dict[str, tuple[int | str, int | str]] = {
    "weight split by output maps": ("replicated", 0),
    "samples split by rows": (2, "replicated"),
    "samples split by columns": (3, "replicated"),
}


def test_dtensor_convolution_is_still_silently_wrong() -> None:
    """No error, a result said to be whole, local tensors that are parts: pinned until it is mended."""
    for found in run_ranks(2, "tests.runners.test_dtensor_guard:convolve"):
        for what, outcome in found.items():
            assert outcome == "claims to be whole and is a part", (
                f"torch's DTensor convolution with {what} no longer is silently wrong, but: {outcome}; "
                f"schemes may use it where it is right now, and this guard may go"
            )


def convolve(world: Any) -> dict[str, str]:
    """What comes of each placement, on one rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.nn import functional

    mesh = init_device_mesh("cpu", (world.size,))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 8, 8, generator=generator)
    weight = torch.randn(6, 4, 3, 3, generator=generator)
    right = functional.conv2d(x, weight, padding=1)

    def placed(tensor: torch.Tensor, where: int | str) -> Any:
        return distribute_tensor(tensor, mesh, [Shard(where) if isinstance(where, int) else Replicate()])

    def outcome(samples: int | str, maps: int | str) -> str:
        try:
            y = functional.conv2d(placed(x, samples), placed(weight, maps), padding=1)
        except (RuntimeError, NotImplementedError) as error:
            return f"an error, {str(error).splitlines()[0]}"
        local = y.to_local()
        if not y.placements[0].is_replicate():
            return f"a result placed as {y.placements}, local shape {tuple(local.shape)}"
        if local.shape != right.shape:
            return "claims to be whole and is a part"
        return "right" if torch.allclose(local, right, atol=1e-5) else "whole and wrong"

    return {what: outcome(*placement) for what, placement in WRONG.items()}
