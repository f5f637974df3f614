"""Python stacks: merging speedscope files, and what becomes of a py-spy that cannot or will not."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.base import Fact
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.stacks import bursts as stacks
from perfscope.collectors.stacks import speedscope
from perfscope.collectors.stacks.bursts import StackBursts
from perfscope.collectors.stacks.speedscope import NotSpeedscope, StackMerge
from perfscope.rundir.layout import STACKS_JSON

PID = 4242


def burst(*threads: tuple[str, list[list[int]]], frames: list[tuple[str, str, int]]) -> dict[str, Any]:
    """A file as py-spy writes it at 20 Hz."""
    return {
        "$schema": speedscope.SCHEMA,
        "exporter": "py-spy@0.4.3",
        "shared": {"frames": [{"name": n, "file": f, "line": line, "col": None} for n, f, line in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "seconds",
                "startValue": 0.0,
                "endValue": 0.05 * len(samples),
                "samples": samples,
                "weights": [0.05] * len(samples),
            }
            for name, samples in threads
        ],
    }


FRAMES = [("step", "train.py", 7), ("main", "train.py", 20), ("<module>", "train.py", 30)]
MAIN = f'Thread {PID} "MainThread"'


def shown(document: dict[str, Any], profile: int = 0) -> dict[tuple[str, ...], float]:
    """Stacks by frame names, with their seconds."""
    frames = document["shared"]["frames"]
    entry = document["profiles"][profile]
    return {
        tuple(frames[index]["name"] for index in stack): weight
        for stack, weight in zip(entry["samples"], entry["weights"], strict=True)
    }


def test_bursts_of_a_rank_are_summed_and_frames_are_shared_between_ranks() -> None:
    merge = StackMerge()
    assert merge.add("rank pid 1", burst((MAIN, [[2, 1, 0], [2, 1, 0], [2, 1]]), frames=FRAMES), PID) == 3
    turned = [FRAMES[2], FRAMES[1], FRAMES[0]]  # the next file numbers the same frames differently
    merge.add("rank pid 1", burst((MAIN, [[0, 1, 2]]), frames=turned), PID)
    merge.add("rank pid 2", burst((MAIN, [[0, 1]]), frames=turned), PID)
    document: dict[str, Any] = merge.as_document()
    assert [profile["name"] for profile in document["profiles"]] == ["rank pid 1", "rank pid 2"]
    assert shown(document) == {("<module>", "main", "step"): 0.15, ("<module>", "main"): 0.05}
    assert document["profiles"][0]["endValue"] == 0.2
    assert len(document["shared"]["frames"]) == 3
    assert {"name": "step", "file": "train.py", "line": 7} in document["shared"]["frames"]


def test_the_merged_file_satisfies_the_speedscope_schema() -> None:
    merge = StackMerge()
    merge.add("rank pid 1", burst((MAIN, [[2, 1, 0], []]), frames=FRAMES), PID)
    document: dict[str, Any] = merge.as_document(perfscope={"bursts": 1})
    check_speedscope(document)
    assert document["perfscope"] == {"bursts": 1}


def check_speedscope(document: dict[str, Any]) -> None:
    """The rules of file-format-schema.json for sampled profiles."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    assert all(isinstance(frame.get("line", 0), int) for frame in frames)
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] == "seconds"
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= index < len(frames) for stack in profile["samples"] for index in stack)
        assert profile["endValue"] - profile["startValue"] == pytest.approx(sum(profile["weights"]), abs=1e-6)


def test_a_waiting_main_thread_counts_and_other_waiting_threads_do_not() -> None:
    lib = "/usr/lib/python3.11/"
    frames = [
        ("<module>", "train.py", 1),
        ("Condition.wait", lib + "threading.py", 327),
        ("Thread._bootstrap", lib + "threading.py", 1002),
        ("pin_memory", "loader.py", 9),
    ]
    document = burst(
        (MAIN, [[0, 1]]),
        (f'Thread {PID + 1} "feeder"', [[2, 1], [2, 3]]),
        frames=frames,
    )
    merge = StackMerge()
    assert merge.add("rank", document, PID) == 2
    assert shown(merge.as_document()) == {
        ("<module>", "Condition.wait"): 0.05,
        ("(thread feeder)", "Thread._bootstrap", "pin_memory"): 0.05,
    }


def test_without_kernel_thread_ids_the_main_thread_is_the_one_nobody_started() -> None:
    frames = [("<module>", "train.py", 1), ("Thread._bootstrap", "/lib/threading.py", 3), ("work", "t.py", 4)]
    document = burst(
        ('Thread 0x7F12AB ""', [[0, 2]]),
        ('Thread 0x7F12AC ""', [[1, 2]]),
        frames=frames,
    )
    merge = StackMerge()
    merge.add("rank", document, PID)
    assert shown(merge.as_document()) == {
        ("<module>", "work"): 0.05,
        ("(thread 7F12AC)", "Thread._bootstrap", "work"): 0.05,
    }


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"shared": {}, "profiles": []},
        {"shared": {"frames": 3}, "profiles": []},
        {"shared": {"frames": [{}]}, "profiles": []},
        {"shared": {"frames": []}, "profiles": [{"name": "x", "samples": [[0]], "weights": [1]}]},
        {"shared": {"frames": []}, "profiles": [{"name": "x", "samples": [[]], "weights": []}]},
        {"shared": {"frames": []}, "profiles": [{"name": "x", "samples": [7], "weights": ["a"]}]},
    ],
)
def test_what_is_no_speedscope_file_adds_nothing(document: object) -> None:
    merge = StackMerge()
    with pytest.raises(NotSpeedscope):
        merge.add("rank", document, PID)
    assert merge.as_document()["profiles"] == []


def test_the_number_of_distinct_stacks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedscope, "MAX_STACKS", 10)
    frames = [(f"f{index}", "t.py", index) for index in range(40)]
    merge = StackMerge()
    merge.add("rank", burst((MAIN, [[0, k] for k in range(1, 40)]), frames=frames), PID)
    merge.add("rank", burst((MAIN, [[0, 1]]), frames=frames), PID)
    found = shown(merge.as_document())
    assert len(found) == 11
    assert found[(speedscope.OTHER,)] == pytest.approx(29 * 0.05)
    assert found[("f0", "f1")] == pytest.approx(0.1)


# The collector, with programs of ours in py-spy's place.

DATA = json.dumps(burst((MAIN, [[2, 1, 0]]), frames=FRAMES))
FAKES = {
    "works": f'cat > "$out" <<\'X\'\n{DATA}\nX\necho "py-spy> Wrote it. Samples: 1 Errors: 2"',
    "denied": "echo \"Permission Denied: Try running again with elevated permissions by 'sudo'\" >&2; exit 1",
    "no python": "echo 'py-spy> Sampling'; echo 'Error: Failed to find python version' >&2; exit 1",
    "rubbish": 'echo "{" > "$out"',
    "silent": "exit 3",
    "hangs": "trap '' INT TERM; exec sleep 60",
}


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "ROUND_NS", 0)
    monkeypatch.setattr(stacks, "SHORTEST_GAP_NS", 0)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program in py-spy's place; gives the file into which it writes the pids it was asked for."""

    def make(what: str) -> Path:
        program, asked = tmp_path / "py-spy", tmp_path / "asked"
        program.write_text(
            "#!/bin/sh\n"
            'while [ $# -gt 0 ]; do case "$1" in --output) out=$2;; --pid) pid=$2;; esac; shift; done\n'
            f'echo "$pid" >> {asked}\n{FAKES[what]}\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(stacks, "find_py_spy", lambda: str(program))
        return asked

    return make


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


def opened(host: Path | None, pids: Callable[[], list[int]]) -> StackBursts:
    collector = StackBursts()
    collector.open(live_context(pids=pids, out_dir=host, options={"stacks": True}))
    return collector


def until(collector: StackBursts, done: Callable[[], bool], seconds: float = 20) -> list[Fact]:
    """Samples until `done`; gives the facts."""
    facts: list[Fact] = []
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, facts
        collector.sample()
        facts += collector.facts()
        time.sleep(0.01)
    return facts


def test_a_burst_becomes_a_whole_file(fake: Callable[[str], Path], fast: None, host: Path) -> None:
    fake("works")
    collector = opened(host, lambda: [PID])
    facts = until(collector, (host / STACKS_JSON).exists)
    collector.close()
    document = json.loads((host / STACKS_JSON).read_text())
    check_speedscope(document)
    assert document["profiles"][0]["name"] == f"rank pid {PID}"
    found = document["perfscope"]
    assert found["bursts"] >= 1
    assert found["samples"] == found["bursts"]
    assert 2 <= found["torn"] <= 2 * found["bursts"]  # closing may end a second burst before it says so
    assert facts == []
    assert [path.name for path in host.iterdir()] == [STACKS_JSON]


def test_no_more_than_four_ranks_at_once_and_all_in_turn(
    fake: Callable[[str], Path], fast: None, host: Path
) -> None:
    asked = fake("works")
    pids = list(range(1001, 1011))
    collector = opened(host, lambda: pids)
    until(collector, lambda: len(asked.read_text().split()) >= 20 if asked.exists() else False)
    collector.close()
    order = [int(word) for word in asked.read_text().split()]
    assert set(order[:4]) == set(pids[:4])
    assert set(order[4:8]) == set(pids[4:8])
    assert set(order[:12]) == set(pids)


def test_a_missing_right_ends_the_stacks_once_and_names_the_remedy(
    fake: Callable[[str], Path], fast: None, host: Path
) -> None:
    fake("denied")
    own = os.getpid()
    collector = opened(host, lambda: [own])
    facts = until(collector, lambda: collector._off)
    for _ in range(5):
        collector.sample()
    facts += collector.facts()
    assert [fact.name for fact in facts] == ["stopped"]
    reason = str(facts[0].value["reason"])
    assert "Permission Denied" in reason
    assert "kernel.yama.ptrace_scope=0" in reason
    assert "sudo'" not in reason
    assert not (host / STACKS_JSON).exists()


@pytest.mark.parametrize(
    ("what", "words"),
    [("no python", "Failed to find python version"), ("rubbish", "no stacks"), ("silent", "no stacks")],
)
def test_a_rank_that_gives_nothing_is_left_alone_after_a_few_tries(
    fake: Callable[[str], Path], fast: None, host: Path, what: str, words: str
) -> None:
    asked = fake(what)
    own = os.getpid()
    collector = opened(host, lambda: [own])
    facts = until(collector, lambda: own in collector._left_alone)
    for _ in range(5):
        collector.sample()
    facts += collector.facts()
    assert [(fact.name, fact.labels) for fact in facts] == [("stopped", {"pid": str(own)})]
    assert words in str(facts[0].value["reason"])
    assert len(asked.read_text().split()) == stacks.MAX_FAILURES


def test_a_rank_that_ended_during_its_burst_is_no_news(
    fake: Callable[[str], Path], fast: None, host: Path
) -> None:
    asked = fake("silent")
    pids = [os.getpid()]
    collector = opened(host, lambda: pids)
    collector.sample()
    pids.clear()
    until(collector, lambda: asked.exists() and not collector._running)
    assert collector.facts() == []


def test_py_spy_that_hangs_is_gone_after_close(fake: Callable[[str], Path], fast: None, host: Path) -> None:
    asked = fake("hangs")
    collector = opened(host, lambda: [os.getpid()])
    until(collector, asked.exists)
    children = [running.child for running in collector._running]
    assert children
    collector.close()
    collector.close()
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_py_spy_that_hangs_is_ended_while_the_run_goes_on(
    fake: Callable[[str], Path], fast: None, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_SLACK_NS", -2 * 10**9)
    fake("hangs")
    collector = opened(host, lambda: [os.getpid()])
    facts = until(collector, lambda: bool(collector._left_alone))
    collector.close()
    assert [fact.name for fact in facts] == ["stopped"]


def test_a_full_disk_ends_the_stacks_and_leaves_no_half_file(
    fake: Callable[[str], Path], fast: None, tmp_path: Path
) -> None:
    fake("works")
    gone = tmp_path / "gone"
    collector = opened(gone, lambda: [PID])
    facts = until(collector, lambda: collector._off)
    collector.close()
    assert "cannot be written: No such file or directory" in str(facts[0].value["reason"])


def test_a_program_that_is_gone_is_told(fake: Callable[[str], Path], fast: None, host: Path) -> None:
    asked = fake("works")
    collector = opened(host, lambda: [os.getpid()])
    asked.with_name("py-spy").unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    facts = until(collector, lambda: collector._off)
    assert "cannot be started: No such file or directory" in str(facts[0].value["reason"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# What probe says.


def test_stacks_are_off_unless_asked_for() -> None:
    found = StackBursts().probe(live_context())
    assert (found.available, found.remedy) == (False, "perfscope run --stacks")


def test_without_py_spy_the_remedy_installs_py_spy_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    found = StackBursts().probe(live_context(options={"stacks": True}))
    assert (found.available, found.reason) == (False, "py-spy is not installed")
    assert found.remedy == f"{shlex.quote(sys.executable)} -m pip install 'py-spy>=0.4'"
    assert stacks.missing_py_spy() == f"{found.reason}: {found.remedy}"
    monkeypatch.setattr(sys, "executable", "/home/a user/venv/bin/python")
    assert "'/home/a user/venv/bin/python' -m pip" in str(stacks.missing_py_spy())
    monkeypatch.setattr(stacks, "find_py_spy", lambda: "/usr/bin/py-spy")
    assert stacks.missing_py_spy() is None


def test_py_spy_beside_our_python_needs_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "py-spy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stacks.find_py_spy() == str(program)
    program.unlink()
    assert stacks.find_py_spy() is None


def test_a_captured_tree_has_no_stacks(tmp_path: Path) -> None:
    found = StackBursts().probe(captured_context(tmp_path, options={"stacks": True}))
    assert not found.available
    assert "captured" in found.reason


def machine(root: Path, scope: str, capabilities: str) -> Context:
    """A machine with a Yama setting and a process with these effective capabilities."""
    for name, text in (
        ("proc/sys/kernel/yama/ptrace_scope", scope),
        ("proc/self/status", f"Name:\tpython\nCapEff:\t{capabilities}\n"),
        ("proc/77/mem", ""),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Context(root=root)


NONE, PTRACE = "0000000000000000", "0000000000080000"


@pytest.mark.parametrize(
    ("scope", "capabilities", "reason"),
    [
        ("0\n", NONE, ""),
        ("1\n", NONE, "ptrace_scope is 1"),
        ("1\n", PTRACE, ""),
        ("2\n", NONE, "ptrace_scope is 2"),
        ("3\n", PTRACE, "no process may be inspected"),
    ],
)
def test_rights_by_yama_and_capabilities(tmp_path: Path, scope: str, capabilities: str, reason: str) -> None:
    ctx = machine(tmp_path, scope, capabilities)
    told, remedy = stacks.why_no_ptrace(ctx, "/nowhere/py-spy")
    assert (reason in told) if reason else told == ""
    assert bool(remedy) == bool(reason)


def test_with_a_rank_the_kernel_itself_is_asked(tmp_path: Path) -> None:
    allowed = machine(tmp_path, "1\n", NONE)
    asking = Context(root=allowed.root, pids=lambda: [77])
    assert stacks.why_no_ptrace(asking, "/nowhere/py-spy") == ("", "")
    denied = Context(root=allowed.root, pids=lambda: [77], errors={"proc/77/mem": "EACCES"})
    told, remedy = stacks.why_no_ptrace(denied, "/nowhere/py-spy")
    assert told == "process 77 may not be looked into: Permission denied"
    assert "setcap cap_sys_ptrace=ep /nowhere/py-spy" in remedy


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def children() -> set[int]:
    """Pids of the children of this process."""
    paths = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in paths for pid in path.read_text().split()}
