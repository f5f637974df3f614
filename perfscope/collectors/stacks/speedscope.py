"""Merging speedscope files: what py-spy wrote of many bursts and ranks becomes one small file.

Format: https://www.speedscope.app/file-format-schema.json. Of a "sampled" profile only this is used:
`samples`, lists of indices into `shared.frames`, the outermost frame first, and `weights`, seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MAX_STACKS = 20_000  # distinct stacks kept per rank; what comes on top is one stack named OTHER
OTHER = "(stacks beyond the limit)"

# Where a Python thread rests (file, function), as py-spy itself recognizes idle threads.
_RESTING = {
    ("threading.py", "wait"),
    ("threading.py", "_wait_for_tstate_lock"),
    ("threading.py", "acquire"),
    ("selectors.py", "select"),
    ("queue.py", "get"),
    ("connection.py", "poll"),
    ("connection.py", "wait"),
    ("thread.py", "_worker"),
}
_THREAD_NAME = re.compile(r'Thread (?:0x)?(?P<id>[0-9A-Fa-f]+) "(?P<name>.*)"', re.S)

Frame = tuple[str, str, int | None]
Stack = tuple[int, ...]


class NotSpeedscope(ValueError):
    """The document is not a speedscope file of sampled stacks."""


class StackMerge:
    """Stacks of many bursts, summed: each distinct stack of a rank is kept once, with its time.

    The order in time is given up. Bursts have gaps anyhow, and a run of a week stays as small as one of
    a minute.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._profiles: dict[str, dict[Stack, float]] = {}

    def add(self, profile: str, document: object, main_thread: int) -> int:
        """Add one burst of one rank.

        The main thread counts whatever it does: waiting is what one looks for. Of other threads only
        stacks that do something count, below a frame with the thread's name.

        Args:
            profile: name of the rank's profile.
            document: speedscope file, decoded.
            main_thread: its id, which is the pid.

        Returns:
            Samples added.

        Raises:
            NotSpeedscope: nothing was added.
        """
        bursts = list(_threads(document, main_thread))
        stacks = self._profiles.setdefault(profile, {})
        count = 0
        for thread, samples in bursts:
            for frames, weight in samples:
                if thread and _rests(frames[-1]):
                    continue
                named = [(f"(thread {thread})", "", None), *frames] if thread else frames
                self._count(stacks, named, weight)
                count += 1
        return count

    def as_document(self, **extra: object) -> dict[str, object]:
        """The speedscope file; `extra` keys are kept beside what speedscope reads."""
        from perfscope import __version__

        profiles = []
        for name, stacks in self._profiles.items():
            weights = [round(weight, 6) for weight in stacks.values()]
            profiles.append(
                {
                    "type": "sampled",
                    "name": name,
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": round(sum(weights), 6),
                    "samples": [list(stack) for stack in stacks],
                    "weights": weights,
                }
            )
        frames = [
            {"name": name, **({"file": file} if file else {}), **({} if line is None else {"line": line})}
            for name, file, line in self._frames
        ]
        return {
            "$schema": SCHEMA,
            "exporter": f"perfscope@{__version__}",
            "name": "Python stacks of the ranks",
            "activeProfileIndex": 0 if profiles else None,
            "shared": {"frames": frames},
            "profiles": profiles,
            **extra,
        }

    def _count(self, stacks: dict[Stack, float], frames: list[Frame], weight: float) -> None:
        if len(stacks) >= MAX_STACKS:
            frame_numbers = tuple(self._frames.get(frame, -1) for frame in frames)
            if frame_numbers not in stacks:
                frames = [(OTHER, "", None)]
        stack = tuple(self._frames.setdefault(frame, len(self._frames)) for frame in frames)
        stacks[stack] = stacks.get(stack, 0.0) + weight


def _threads(document: object, main_thread: int) -> Iterator[tuple[str, list[tuple[list[Frame], float]]]]:
    """(thread name, "" for the main thread; its stacks and weights). Raises NotSpeedscope."""
    try:
        if not isinstance(document, dict):
            raise TypeError("no JSON object")
        frames = [_frame(entry) for entry in document["shared"]["frames"]]
        for profile in document["profiles"]:
            samples = [
                ([frames[index] for index in stack], float(weight))
                for stack, weight in zip(profile["samples"], profile["weights"], strict=True)
                if stack
            ]
            yield _thread_name(str(profile["name"]), samples, main_thread), samples
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NotSpeedscope(f"{type(error).__name__}: {error}") from None


def _frame(entry: dict[str, Any]) -> Frame:
    line = entry.get("line")
    return str(entry["name"]), str(entry.get("file") or ""), line if isinstance(line, int) else None


def _thread_name(name: str, samples: list[tuple[list[Frame], float]], main_thread: int) -> str:
    """How to call a thread; "" for the main one.

    Before Python 3.11 py-spy knows no thread ids of the kernel without stopping the process; then the main
    thread is the one that no `threading.Thread` has started.
    """
    match = _THREAD_NAME.match(name)
    if match and match["id"].isdigit() and int(match["id"]) == main_thread:
        return ""
    label = (match["name"] or match["id"]) if match else name
    if label == "MainThread":
        return ""
    started = any(frames[0][1].endswith("/threading.py") for frames, _ in samples)
    return label if started or not any(frames[0][0] == "<module>" for frames, _ in samples) else ""


def _rests(frame: Frame) -> bool:
    name, file, _ = frame
    # "Condition.wait" since Python 3.11, "wait" before.
    return (file.rpartition("/")[2], name.rpartition(".")[2]) in _RESTING
