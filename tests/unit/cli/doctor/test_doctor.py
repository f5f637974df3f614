"""`perfscope doctor`: what it prints and refuses, on this machine, on captured trees and on rubbish."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfscope.cli.doctor import command as doctor
from perfscope.cli.doctor.captured_tree import CapturedTreeError, find_tree
from perfscope.collectors import registry
from perfscope.collectors.base import Absent, BaseCollector, Capability, Fact, Reading
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.survey import survey
from perfscope.collectors.trial import try_out
from perfscope.errors import PerfscopeError
from perfscope.rundir.metrics import COUNTER, Metric, Series
from tests.support import hardware

BYTES = Metric(name="some_bytes", unit="bytes", kind=COUNTER, source="/proc/FILE", description="Bytes.")

needs_safe_tar = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="this Python (before 3.11.4) cannot unpack a tar safely"
)


class Counts(BaseCollector):
    """A collector as it should be."""

    name = "numa"

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self._series = Series(BYTES, {})

    def probe(self, ctx: Context) -> Capability:
        return Capability(collector=self.name, available=True, metrics=(BYTES,), source="/proc/FILE")

    def open(self, ctx: Context) -> None: ...

    def sample(self) -> Sequence[Reading]:
        return [Reading(self._series, 1, 0, 1), Reading(self._series, None, 0, 1)]

    def close(self) -> None:
        self.closed += 1


class Partly(Counts):
    name = "cpu"

    def probe(self, ctx: Context) -> Capability:
        absent = Absent(what="cpu_frequency", reason="no cpufreq driver", remedy="modprobe acpi-cpufreq")
        return Capability(collector=self.name, available=True, metrics=(BYTES,), absent=(absent,))


class Missing(Counts):
    name = "membw"

    def probe(self, ctx: Context) -> Capability:
        return Capability(
            collector=self.name,
            available=False,
            reason="perf_event_paranoid is 3",
            remedy="sudo sysctl kernel.perf_event_paranoid=0",
        )


class MissingToo(Missing):
    name = "power.perf"


class Raises(Counts):
    name = "foreign"

    def probe(self, ctx: Context) -> Capability:
        raise RuntimeError("boom")


class SamplesBadly(Counts):
    name = "io"

    def sample(self) -> Sequence[Reading]:
        raise ZeroDivisionError("nothing")


class CannotOpen(Counts):
    name = "fabric"

    def open(self, ctx: Context) -> None:
        raise OSError(5, "gone")

    def close(self) -> None:
        raise AssertionError("was never open")


class Stops(Counts):
    name = "ethernet"
    slow = True

    def sample(self) -> Sequence[Reading]:
        self.stopped("net_tx_bytes", {"interface": "eth9"}, "eth9 is gone")
        return ()


class Wrong(Counts):
    name = "wrong"

    def probe(self, ctx: Context) -> Capability:
        return None  # type: ignore[return-value]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "own_collectors", lambda: [Counts(), Partly(), Missing(), MissingToo()])
    monkeypatch.setattr(registry, "foreign_collectors", lambda: ([Raises()], ["collector x (y:Z): gone"]))


def run(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(doctor.command, [str(word) for word in words])


def perfscope(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


# The text


def test_the_verdict_comes_first_and_the_bug_report_last(fakes: None) -> None:
    done = run()
    assert done.exit_code == 0
    lines = done.output.splitlines()
    verdict = "2 of 5 sources available, 1 of them in part; none for memory bandwidth, power or foreign."
    assert lines.index(verdict) <= 4
    headings = [line for line in lines if line and not line.startswith(" ") and line in HEADINGS]
    assert headings == HEADINGS


HEADINGS = ["What you can do", "Sources", "This machine", "Ceilings", "Bug report information"]


def test_each_remedy_is_told_once_with_what_it_gives(fakes: None) -> None:
    text = run().output
    todo = text.partition("What you can do")[2].partition("Sources")[0]
    assert "modprobe acpi-cpufreq\n     → cpu_frequency" in todo
    assert todo.count("sudo sysctl kernel.perf_event_paranoid=0") == 1
    assert "→ membw, power.perf" in todo


def test_marks_reasons_and_remedies_are_readable_without_color(fakes: None) -> None:
    text = run().output
    assert "\x1b[" not in text
    assert "  ✓ numa" in text
    assert "  ! cpu" in text
    assert "– cpu_frequency: no cpufreq driver" in text
    assert "  – membw       perf_event_paranoid is 3" in text
    assert ". sudo sysctl kernel.perf_event_paranoid=0" in text
    assert "above" in text.partition("Sources")[2]  # said once in full, not at every source
    assert "  – foreign     the collector failed: RuntimeError: boom" in text


def test_a_fault_of_a_foreign_collector_reaches_the_bug_report(fakes: None) -> None:
    text = run().output.partition("Bug report information")[2]
    assert "sources: +numa !cpu -membw -power.perf -foreign" in text
    assert "problem: collector x (y:Z): gone" in text
    assert "perfscope doctor --json > doctor.json" in text


def test_the_bug_report_names_neither_host_nor_address(monkeypatch: pytest.MonkeyPatch) -> None:
    host = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()
    secret = "hf_abcdefghijklmnop"
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("NCCL_COMM_ID", f"token={secret}")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    done = run("--json")
    document = json.loads(done.output)
    assert secret not in done.output
    assert document["surroundings"]["environment"]["OMP_NUM_THREADS"] == "3"
    report = run().output.partition("Bug report information")[2]
    assert secret not in report
    assert "OMP_NUM_THREADS=3" in report
    if len(host) > 3:
        assert host not in report.split()


def test_a_terminal_without_unicode_gets_marks_in_ascii(fakes: None) -> None:
    done = perfscope("doctor", "--root", hardware.tree("two-socket-before"), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "  + numa" in done.stdout
    assert "?" not in done.stdout.partition("Sources")[2].partition("The machine")[0]


# JSON


def test_json_holds_every_source_and_the_machine(fakes: None) -> None:
    document = json.loads(run("--json").output)
    assert document["schema_version"] == 1
    assert (document["num_sources"], document["num_available"]) == (5, 2)
    assert document["captured"] is None
    assert document["sample"] is None
    numa = document["sources"][0]
    assert numa["metrics"][0]["name"] == "some_bytes"
    assert set(numa) == {
        *("collector", "available", "metrics", "source", "min_interval_ns", "reason", "remedy", "absent"),
        *("detail", "slow", "foreign"),
    }
    assert document["sources"][1]["absent"][0]["remedy"] == "modprobe acpi-cpufreq"
    assert document["sources"][4]["foreign"] is True
    assert document["topology"]["logical_cpus"] == os.cpu_count()
    around = document["surroundings"]
    assert around["python"].startswith(("CPython", "PyPy"))
    assert set(around["packages"]) >= {"torch", "py-spy", "nvidia-ml-py"}
    assert around["limits"]["open_files"] is None or around["limits"]["open_files"] > 0
    assert {"perf_event_paranoid", "ptrace_scope", "numa_balancing"} <= set(around["kernel_settings"])


def test_torch_is_looked_up_but_not_imported() -> None:
    script = (
        "import sys\n"
        "from perfscope.collectors.context import live_context\n"
        "from perfscope.collectors.survey import survey\n"
        "found = survey(live_context(), 'h')\n"
        "assert found.sources\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'matplotlib') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


# Sampling


def test_sampling_proves_each_source_or_says_what_went_wrong() -> None:
    collectors = [Counts(), SamplesBadly(), CannotOpen(), Stops()]
    trials = {trial.collector: trial for trial in try_out(collectors, live_context(), 0.35)}
    good = trials["numa"]
    assert good.samples >= 2
    assert good.readings == good.failed == good.samples
    assert good.fault == ""
    assert collectors[0].closed == 1
    assert trials["io"].fault == "ZeroDivisionError: nothing"
    assert trials["fabric"].fault == "cannot be opened: [Errno 5] gone"
    assert trials["ethernet"].stopped[0] == "net_tx_bytes: eth9 is gone"


def test_a_call_that_blocks_does_not_hold_the_doctor_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.collectors.trial._PATIENCE_S", 0.2)

    class Blocks(Counts):
        name = "nvml"
        slow = True

        def sample(self) -> Sequence[Reading]:
            time.sleep(3)
            return ()

        def facts(self) -> Sequence[Fact]:
            return ()

    began = time.monotonic()
    trials = try_out([Blocks(), Counts()], live_context(), 0.3)
    assert time.monotonic() - began < 2.5
    assert "did not come back" in trials[0].fault
    assert trials[1].readings > 0


def test_sampling_this_machine_gives_readings() -> None:
    done = run("--sample", "1.2", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    trials = {trial["collector"]: trial for trial in document["sample"]}
    available = {s["collector"] for s in document["sources"] if s["available"]}
    assert set(trials) == available
    assert all(trial["fault"] == "" for trial in trials.values()), trials
    assert trials["cpu"]["readings"] > 0
    assert trials["cpu"]["cpu_ns"] > 0


# Trees that are good, bad and hostile


@pytest.mark.parametrize("name", hardware.names())
def test_every_captured_tree_is_surveyed_without_a_problem(name: str) -> None:
    done = run("--root", hardware.tree(name), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["problems"] == []
    assert document["captured"].endswith(name)
    failed = [source for source in document["sources"] if "collector failed" in source["reason"]]
    assert failed == []
    for source in document["sources"]:
        assert source["available"] or source["reason"], source["collector"]
    assert run("--root", hardware.tree(name)).exit_code == 0


@needs_safe_tar
def test_a_tar_is_as_good_as_its_folder() -> None:
    archive = hardware.data_file("two-socket-before.tar.xz")
    from_tar = json.loads(run("--root", archive, "--json").output)
    from_folder = json.loads(run("--root", hardware.tree("two-socket-before"), "--json").output)
    for document in (from_tar, from_folder):
        del document["captured"], document["taken_unix_ns"]
    assert from_tar == from_folder
    assert from_tar["topology"]["sockets"] == 2


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "rubbish.tar", "cut.tar.xz", "no machine"])
def test_a_bad_root_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind in ("empty", "no machine"):
        path.mkdir()
    if kind == "no machine":
        (path / "holiday").mkdir()
    if kind == "file":
        path.write_text("hello")
    if kind == "rubbish.tar":
        path.write_bytes(os.urandom(5000))
    if kind == "cut.tar.xz":
        path.write_bytes(hardware.data_file("two-socket-before.tar.xz").read_bytes()[:3000])
    done = perfscope("doctor", "--root", path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("perfscope: ")
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_may_not_be_read_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    if os.geteuid():
        tmp_path.chmod(0)
    else:  # root may read everything: the refusal is made up

        def refuse(path: Path) -> list[Path]:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "iterdir", refuse)
    try:
        done = run("--root", tmp_path)
        assert isinstance(done.exception, PerfscopeError)
        assert str(done.exception) == f"{tmp_path}: Permission denied"
    finally:
        tmp_path.chmod(0o755)


def test_files_that_may_not_be_read_are_reasons_not_faults() -> None:
    tree = hardware.tree("two-socket-before")
    errors = {
        path.relative_to(tree).as_posix(): "EACCES"
        for top in ("proc", "sys")
        for path in (tree / top).rglob("*")
        if path.is_file()
    }
    found = survey(captured_context(tree, errors=errors), "h")
    assert found.problems == ()
    assert found.sources
    assert not [s for s in found.sources if "collector failed" in s.capability.reason]


def test_files_that_hold_rubbish_are_reasons_not_faults(tmp_path: Path) -> None:
    tree = hardware.copy("two-socket-before", tmp_path / "tree")
    for path in [*(tree / "proc").rglob("*"), *(tree / "sys").rglob("*")]:
        if path.is_file() and not path.is_symlink():
            path.chmod(0o644)
            path.write_bytes(b"\xff\x00 rubbish: -9e999 \n,,--\n")
    found = survey(captured_context(tree), "h")
    assert found.problems == ()
    assert not [s for s in found.sources if "collector failed" in s.capability.reason], found.sources
    assert run("--root", tree).exit_code == 0


def hostile_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:

        def add(name: str, data: bytes = b"", **fields: Any) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in fields.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(data))

        add("proc", type=tarfile.DIRTYPE, mode=0o555)
        add("proc/stat", b"cpu  1 2 3 4 5 6 7 8 9 10\n", mode=0o444)
        add("../escaped", b"x")
        add("/tmp/perfscope-escaped", b"x")
        add("proc/version", type=tarfile.SYMTYPE, linkname="/etc/hostname")
        add("proc/meminfo", type=tarfile.LNKTYPE, linkname="../../secret")
        add("proc/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        add("proc/fifo", type=tarfile.FIFOTYPE)


@needs_safe_tar
def test_a_hostile_tar_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    hostile_tar(tmp_path / "bad.tar")
    place = tmp_path / "deep" / "scratch"
    place.mkdir(parents=True)
    tree = find_tree(tmp_path / "bad.tar", place)
    assert tree == place
    inside = sorted(path.relative_to(place).as_posix() for path in place.rglob("*"))
    assert [name for name in inside if "tmp" not in name] == ["proc", "proc/stat"]
    assert not (tmp_path / "deep" / "escaped").exists()
    assert not Path("/tmp/perfscope-escaped").exists()
    assert all(not path.is_symlink() for path in place.rglob("*"))


@needs_safe_tar
def test_a_tar_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = hardware.data_file("two-socket-before.tar.xz")
    monkeypatch.setattr("perfscope.cli.doctor.captured_tree.MAX_BYTES", 1000)
    with pytest.raises(CapturedTreeError, match="too large"):
        find_tree(archive, tmp_path)


# Options


@pytest.mark.parametrize("option", [["--ceilings"], ["--sample", "1"]])
def test_a_captured_tree_cannot_be_measured(option: list[str]) -> None:
    done = perfscope("doctor", "--root", hardware.tree("two-socket-before"), *option)
    assert done.returncode == 2
    assert "needs the machine itself" in done.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "x"])
def test_a_senseless_sampling_time_is_refused(seconds: str) -> None:
    assert run("--sample", seconds).exit_code == 2


def test_help_has_examples() -> None:
    done = perfscope("doctor", "--help")
    assert done.returncode == 0
    assert "perfscope doctor --json | jq" in done.stdout
    assert "  doctor " in perfscope("--help").stdout


def test_nothing_at_all_is_exit_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "own_collectors", list)
    monkeypatch.setattr("perfscope.collectors.survey._topology", lambda ctx, host: {})
    done = run()
    assert isinstance(done.exception, PerfscopeError)
    assert "nothing could be surveyed" in str(done.exception)


@pytest.mark.parametrize(("words", "redirect"), [(["--json"], ">/dev/full"), ([], ">/dev/full"), ([], ">&-")])
def test_a_stdout_that_takes_nothing_is_one_line(words: list[str], redirect: str) -> None:
    command = [sys.executable, "-m", "perfscope", "doctor", *words]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirect}', "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("perfscope: cannot write to stdout: ")
    assert done.stderr.count("\n") == 1


def test_a_probe_that_answers_nonsense_is_a_fault_of_that_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "own_collectors", lambda: [Wrong(), Counts()])
    found = survey(live_context(), "h")
    assert [source.capability.available for source in found.sources] == [False, True]
    assert "gave NoneType" in found.sources[0].capability.reason


def test_what_needs_living_processes_is_not_available_in_a_captured_tree() -> None:
    document = json.loads(run("--root", hardware.tree("two-socket-before"), "--json").output)
    sources = {source["collector"]: source for source in document["sources"]}
    for name in ("numa.placement", "cpu.tasks", "neighbours"):
        assert (sources[name]["available"], "living processes" in sources[name]["reason"]) == (False, True)
    assert sources["numa"]["available"]
