"""Measures copies between this host and its GPUs, and between GPUs, with the user's PyTorch. Run as a script.

    python kernels_copies.py PLAN          PLAN: JSON, see `main`; prints one JSON object a line as it goes

From host to device and back, from pinned memory (the device fetches it by itself) and from pageable memory
(the driver copies it first); within a device, where bytes read and bytes written both count; between every
two devices. Standard library and torch only, Python 3.8 and later.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import torch

SIZES = (65_536, 1 << 20, 16 << 20, 256 << 20)
ROUNDS = (3, 20)
MOST_DEVICES = 16
_MEMORY_SHARE = 4  # a buffer takes at most so much of what is free on a device

Copy = tuple[dict[str, Any], Callable[[int], Callable[[], Any]]]


def main(text: str) -> None:
    """Do what a plan says: {"budget_s": s, "seconds": per size}."""
    plan = json.loads(text)
    deadline = time.monotonic() + plan["budget_s"]
    if not torch.cuda.is_available():
        say({"missing": "copies of GPUs", "reason": "torch " + torch.__version__ + " sees no GPU"})
        return
    say({"how": "torch " + torch.__version__ + ", CUDA " + str(torch.version.cuda)})
    for label, make in copies(min(torch.cuda.device_count(), MOST_DEVICES)):
        for size in SIZES:
            if time.monotonic() > deadline:
                say({"missing": label["what"], "reason": "no time was left"})
                break
            try:
                seconds = timed(make(size), plan["seconds"])
            except RuntimeError as error:  # no memory is left, or the devices cannot reach each other
                say({"missing": label["what"], "reason": (str(error).splitlines() or ["failed"])[0]})
                break
            say(dict(label, bytes=size * label["times"], seconds=seconds))


def copies(num: int) -> Iterator[Copy]:
    """Every kind of copy: its label, and what makes one of a size. `times`: how often each byte counts."""
    for index in range(num):
        device = "cuda:" + str(index)
        facts = dict(identity(index), device=device)
        for pinned in (True, False):
            memory = "pinned" if pinned else "pageable"
            yield _label(facts, "h2d", memory), _to_device(device, pinned)
            yield _label(facts, "d2h", memory), _to_host(device, pinned)
        yield dict(_label(facts, "d2d", ""), times=2), _between(device, device)
    for index, other in permutations(range(num), 2):
        device, peer = "cuda:" + str(index), "cuda:" + str(other)
        label = _label(dict(identity(index), device=device), "p2p", "")
        yield dict(label, peer=peer, what=device + " to " + peer), _between(device, peer)


def identity(index: int) -> dict[str, Any]:
    """Which device it is: its number here counts those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    properties = torch.cuda.get_device_properties(index)
    facts = {"name": properties.name, "uuid": "", "pci": ""}
    uuid = getattr(properties, "uuid", None)  # not of every version of torch
    if uuid is not None:
        facts["uuid"] = str(uuid) if str(uuid).startswith("GPU-") else "GPU-" + str(uuid)
    if hasattr(properties, "pci_bus_id"):
        address = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
        facts["pci"] = "{:04x}:{:02x}:{:02x}.0".format(*address)
    return facts


def _label(facts: dict[str, Any], direction: str, memory: str) -> dict[str, Any]:
    titles = {
        "h2d": "host to device",
        "d2h": "device to host",
        "d2d": "within the device, read and written",
        "p2p": "",
    }
    what = facts["device"] + " " + titles[direction] + (", " + memory if memory else "")
    return dict(facts, direction=direction, memory=memory, peer=None, what=what, times=1)


def _to_device(device: str, pinned: bool) -> Callable[[int], Callable[[], Any]]:
    def make(size: int) -> Callable[[], Any]:
        source = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        target = torch.empty(_fitting(size, device), dtype=torch.uint8, device=device)
        return lambda: target.copy_(source, non_blocking=True)

    return make


def _to_host(device: str, pinned: bool) -> Callable[[int], Callable[[], Any]]:
    def make(size: int) -> Callable[[], Any]:
        source = torch.zeros(_fitting(size, device), dtype=torch.uint8, device=device)
        target = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        return lambda: target.copy_(source, non_blocking=True)

    return make


def _between(device: str, peer: str) -> Callable[[int], Callable[[], Any]]:
    def make(size: int) -> Callable[[], Any]:
        source = torch.zeros(_fitting(size, device), dtype=torch.uint8, device=device)
        target = torch.empty(_fitting(size, peer), dtype=torch.uint8, device=peer)
        return lambda: target.copy_(source, non_blocking=True)

    return make


def _fitting(size: int, device: str) -> int:
    free = torch.cuda.mem_get_info(device)[0]
    if size > free // _MEMORY_SHARE:
        raise RuntimeError("not enough memory is free on " + device)
    return size


def timed(copy: Callable[[], Any], seconds: float) -> list[float]:
    """s of one copy, start to end as a program waits for it, round by round."""
    _round(copy)
    rounds: list[float] = []
    end = time.perf_counter() + seconds
    while len(rounds) < ROUNDS[1] and (len(rounds) < ROUNDS[0] or time.perf_counter() < end):
        rounds.append(_round(copy))
    return rounds


def _round(copy: Callable[[], Any]) -> float:
    _wait()
    began = time.perf_counter()
    copy()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # no waiting for CUDA to be taken down
