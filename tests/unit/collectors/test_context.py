"""The world through a Context: a live machine, a captured one, and what goes wrong with either."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.collectors.context import Context, KeptFile, captured_context, live_context
from perfscope.collectors.library import LibraryAbsent
from perfscope.collectors.registry import own_collectors
from perfscope.kernel_text import format_cpulist, parse_cpulist, parse_pairs
from perfscope.units import parse_ns


@given(st.sets(st.integers(min_value=0, max_value=400)))
def test_cpu_lists_say_what_they_said_before(cpus: set[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus) + "\n") == sorted(cpus)


@pytest.mark.parametrize(
    ("text", "cpus"), [("", []), ("\n", []), ("0", [0]), ("0-2,8\n", [0, 1, 2, 8]), ("3,1", [3, 1])]
)
def test_cpu_lists_as_the_kernel_writes_them(text: str, cpus: list[int]) -> None:
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "0-x", "0-99999999999"])
def test_what_is_no_cpu_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|no CPU"):
        parse_cpulist(text)


def test_pairs_with_and_without_units() -> None:
    text = "numa_hit 5\nMemTotal:   12 kB\nodd\nname value\n"
    assert parse_pairs(text) == {"numa_hit": 5, "MemTotal": 12}


def test_a_captured_tree_raises_what_was_raised_there(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text("cpu 1\n")
    manifest = {"errors": {"proc/stat": "EACCES"}, "page_size": 65536, "clk_tck": 250}
    (tmp_path / "MANIFEST.json").write_text(json.dumps(manifest))
    ctx = captured_context(tmp_path)
    assert (ctx.page_size, ctx.clock_ticks, ctx.live) == (65536, 250, False)
    for read in (ctx.read, ctx.keep):
        with pytest.raises(PermissionError):
            read("/proc/stat")
    assert ctx.read_or("/proc/stat", "-") == "-"


def test_a_captured_tree_has_no_system_calls_and_no_libraries(tmp_path: Path) -> None:
    ctx = captured_context(tmp_path)
    with pytest.raises(OSError) as caught:
        ctx.syscalls.move_pages(1, [0])
    assert caught.value.errno == errno.ENOSYS
    with pytest.raises(LibraryAbsent):
        ctx.library(object)


@pytest.mark.parametrize("manifest", ["", "[1]", "{", '{"errors": 3}'])
def test_a_broken_manifest_is_as_none(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "MANIFEST.json").write_text(manifest)
    assert captured_context(tmp_path).errors == {}


def test_a_named_pipe_in_a_captured_tree_is_an_empty_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cpuinfo")
    assert captured_context(tmp_path).read_or("/cpuinfo") == ""


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        captured_context(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        captured_context(tmp_path / "nothing")


def test_names_come_in_numeric_order_and_links_stay_below_the_root(tmp_path: Path) -> None:
    for node in (10, 2, 0):
        (tmp_path / "sys" / f"node{node}").mkdir(parents=True)
    (tmp_path / "sys" / "device").symlink_to("node10")
    (tmp_path / "sys" / "away").symlink_to("/etc")
    ctx = captured_context(tmp_path)
    assert ctx.glob("/sys/node*") == ["/sys/node0", "/sys/node2", "/sys/node10"]
    assert ctx.real("/sys/device") == "/sys/node10"
    assert ctx.real("/sys/away") == "/sys/away"


def test_a_kept_file_is_read_whole_however_long_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 4096)
    kept = KeptFile(path)
    assert kept.read() == b"a" * 4096
    path.write_bytes(b"b" * 100_000)
    assert kept.read() == b"b" * 100_000
    kept.close()
    kept.close()
    with pytest.raises(OSError):
        kept.read()


def test_a_kept_file_gives_all_records_of_a_long_kernel_file() -> None:
    kept = live_context().keep("/proc/self/maps")  # the kernel gives it a page at a time
    assert kept.read().decode().splitlines()[-1].endswith(("[vsyscall]", "[vdso]", "[stack]"))
    kept.close()


def test_a_kept_file_of_a_process_that_has_gone_says_so() -> None:
    child = subprocess.Popen(["sleep", "600"])
    kept = live_context().keep(f"/proc/{child.pid}/stat")
    child.kill()
    child.wait()
    with pytest.raises(OSError):
        kept.read()


@given(st.text(max_size=30))
def test_numbers_are_numbers_and_everything_else_is_none(text: str) -> None:
    class Fixed(Context):
        def read_or(self, name: str, default: str = "") -> str:
            return text.strip()

    value = Fixed().read_int("/x")
    assert value is None or int(text.strip()) == value


def test_every_built_in_collector_can_be_made_and_says_what_it_can_do_here() -> None:
    ctx = live_context()
    names = []
    for collector in own_collectors():
        capability = collector.probe(ctx)
        assert capability.collector == collector.name == collector.name.lower()
        assert capability.available or capability.reason, collector.name
        assert all(metric.unit and metric.source and metric.description for metric in capability.metrics)
        assert collector.min_interval_ns >= 0
        names.append(collector.name)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "ns"), [("100ms", 100_000_000), ("1.5 s", 1_500_000_000), ("2", 2_000_000_000), ("3us", 3000)]
)
def test_times_are_understood(text: str, ns: int) -> None:
    assert parse_ns(text) == ns


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1h", "1e3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse_ns(text)
