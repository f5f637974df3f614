"""The emulated cluster: what it is asked for, what ranks see, that its links keep their rate, that it ends.

Most of it runs real namespaces; without the right to them those tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

import perfscope
from perfscope.rundir.samples import read_samples
from perfscope.runners.cluster.network import host_names, queue_commands, require_rights, require_tools
from perfscope.runners.cluster.ranks import rank_environment
from perfscope.runners.cluster.spec import ClusterSpec, describe, parse_cluster
from perfscope.runners.config import BenchError
from tests.integration.run_support import PERFSCOPE, read_manifest, user_environment

HERE = Path(__file__).parent
LAUNCH = (sys.executable, "-m", "perfscope.runners.cluster", "--quiet")
TRAFFIC = str(HERE / "cluster_traffic.py")
NOBODY = 65534
MARK = "PERFSCOPE_TEST_MARK"
FRAME_BYTES = 66  # Ethernet, IP and TCP with timestamps around what a packet carries


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Skips where this user may have none, or the kernel lacks a part."""
    try:
        require_tools()
        require_rights()
    except BenchError as error:
        pytest.skip(str(error))
    tried = subprocess.run([*LAUNCH, "1x1@1gbit", "--", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(tried.stderr.strip())


def run(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`python -m perfscope.runners.cluster --quiet WORDS...` to its end."""
    return subprocess.run(
        [*LAUNCH, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=user_environment(),
    )


# What is asked for


@pytest.mark.parametrize(
    ("text", "hosts", "ranks", "rate", "latency"),
    [
        ("2x2@1gbit", 2, 2, 10**9, 0),
        ("4x1@100mbit,1ms", 4, 1, 10**8, 1000),
        ("2x1@2.5Gbps", 2, 1, 2_500_000_000, 0),
        ("1x4", 1, 4, None, 0),
        ("3x2@1500kbit,50us", 3, 2, 1_500_000, 50),
    ],
)
def test_a_cluster_as_it_is_written(
    text: str, hosts: int, ranks: int, rate: int | None, latency: float
) -> None:
    spec = parse_cluster(text)
    wanted = ClusterSpec(num_hosts=hosts, ranks_per_host=ranks, bits_per_s=rate, latency_us=latency)
    assert spec == wanted
    assert parse_cluster(str(spec)) == spec
    assert spec.num_ranks == hosts * ranks


@pytest.mark.parametrize(
    "text", ["", "2", "2x2@", "2x2@fast", "2x2@1gbit,", "x2@1gbit", "0x2@1gbit", "2x0@1gbit", "999x1@1gbit",
             "2x2@1kbit", "2x2@1gbit,99s", "2x2@1gbit,1ms,x", "-1x2@1gbit"],
)  # fmt: skip
def test_anything_else_is_one_line(text: str) -> None:
    with pytest.raises(BenchError) as caught:
        parse_cluster(text)
    assert "\n" not in str(caught.value)


def test_the_description_says_what_is_emulated_and_what_is_not() -> None:
    text = describe(parse_cluster("4x1@100mbit,1ms"))
    assert "4 hosts of 1 rank each" in text and "100 Mbit/s" in text and "1ms" in text
    assert "only communication between hosts is emulated" in text and "share" in text


def test_queues_of_a_link() -> None:
    (plain,) = queue_commands("wire0", parse_cluster("2x1@1gbit"), latency=True)
    assert plain.startswith("qdisc add dev wire0 root tbf rate 1000000000bit burst 131072 ")
    late, limited = queue_commands("port0", parse_cluster("2x1@1gbit,1ms"), latency=True)
    assert "root handle 1: netem delay 1000us" in late and "parent 1:1 handle 10: tbf" in limited
    assert len(queue_commands("wire0", parse_cluster("2x1@1gbit,1ms"), latency=False)) == 1
    assert queue_commands("wire0", parse_cluster("2x1"), latency=True) == []
    (fast,) = queue_commands("wire0", parse_cluster("2x1@100gbit"), latency=True)
    assert "burst 12500000 " in fast  # a millisecond's worth


def test_emulated_hosts_are_not_called_like_this_machine() -> None:
    assert host_names(2, "node7") == ["host0", "host1"]
    assert host_names(2, "host1") == ["emulated-host0", "emulated-host1"]


def test_threads_are_shared_out_over_all_ranks() -> None:
    spec = parse_cluster("2x2@1gbit")

    class Stub:
        name, address = "host0", "10.77.0.1"

    hosts = (Stub(), Stub())
    told = rank_environment(spec, hosts, 3, {}, 8)  # type: ignore[arg-type]
    assert told["OMP_NUM_THREADS"] == "2"
    told = rank_environment(spec, hosts, 3, {"OMP_NUM_THREADS": "5", "RANK": "9"}, 8)  # type: ignore[arg-type]
    assert (told["OMP_NUM_THREADS"], told["RANK"]) == ("5", "3")


# What ranks see

SEE = """
import json, os, socket
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR".split()
links = sorted(line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line)
rights = open("/proc/self/status").read().split("CapEff:")[1].split()[0]
seen = [socket.gethostname(), socket.gethostbyname("host1"), os.getuid(), links, rights]
print(json.dumps(seen + [os.environ[name] for name in names]), flush=True)
"""


def test_ranks_see_their_host_only(namespaces: None) -> None:
    done = run("2x2@1gbit", "--", sys.executable, "-c", SEE)
    assert (done.returncode, done.stderr) == (0, "")
    seen = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda words: int(words[5]))
    assert [words[0] for words in seen] == ["host0", "host0", "host1", "host1"]
    assert {words[1] for words in seen} == {"10.77.0.2"}
    assert {tuple(words[3]) for words in seen} == {("lo", "wire0")}
    assert [words[5:] for words in seen] == [
        [str(rank), "4", str(rank % 2), "2", str(rank // 2), "10.77.0.1"] for rank in range(4)
    ]
    assert "wire0" not in Path("/proc/self/net/dev").read_text()


def test_a_user_without_rights_gets_a_cluster_and_no_rights(namespaces: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("every other test is this one")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    environment = {**user_environment(), "PYTHONPATH": str(Path(perfscope.__file__).parents[1])}
    pythons = (sys.executable, "/usr/bin/python3")
    python = next((one for one in pythons if nobody_has(become, one, environment)), None)
    if python is None:
        pytest.skip("no Python that every user may start, or no setpriv")
    words = [python, *LAUNCH[1:], "2x1@1gbit", "--", python, "-c", SEE]
    done = subprocess.run([*become, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        # Kernels that keep user namespaces from users say so; then the line is what is tested.
        assert "needs network namespaces" in done.stderr and done.stderr.count("\n") == 1
        pytest.skip(done.stderr.strip())
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        words = json.loads(line)
        assert words[2] == NOBODY
        assert int(words[4], 16) == 0


def nobody_has(become: list[str], python: str, environment: dict[str, str]) -> bool:
    """Whether a user without rights can start this Python and import from it what the cluster needs."""
    check = [python, "-c", "import perfscope.runners.cluster.launcher"]
    try:
        done = subprocess.run(
            [*become, "sh", "-c", '"$@"', "sh", *check], env=environment, capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def test_without_namespaces_one_line_says_what_is_missing(namespaces: None) -> None:
    refuse = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", refuse, "sh", *LAUNCH, "2x1@1gbit", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "network namespaces" in done.stderr and "CAP_NET_ADMIN" in done.stderr


def test_a_delay_is_emulated_or_refused(namespaces: None) -> None:
    done = run("2x1@1gbit,20ms", "--", sys.executable, TRAFFIC, "echo", "10")
    if done.returncode:
        assert "sch_netem" in done.stderr and done.stderr.count("\n") == 1
        return
    assert float(done.stdout) >= 0.04  # there and back


# Rates


def rate_of(spec: str, *words: str) -> float:
    """bit/s that arrived at rank 0."""
    done = run(spec, "--", sys.executable, TRAFFIC, *words)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize(
    ("spec", "direction"),
    [("2x1@200mbit", "receive"), ("2x1@200mbit", "send"), ("3x1@200mbit", "receive")],
    ids=["to one", "from one", "two to one"],
)
def test_a_link_keeps_its_rate(namespaces: None, spec: str, direction: str) -> None:
    """Also when two hosts send to one: then the switch holds them back, on the way to that host."""
    size = 16 << 20
    for attempt in range(3):  # a busy machine may be slower than the link, but no link is ever faster
        rate = rate_of(spec, direction, str(size))
        assert rate < 200e6 * 1.1
        if rate > 200e6 * 0.9 or attempt == 2:
            break
    assert rate > 200e6 * 0.5


@pytest.mark.torch
def test_ranks_of_one_host_do_not_use_the_wire(namespaces: None) -> None:
    pytest.importorskip("torch")
    done = run("2x2@100mbit", "--", sys.executable, TRAFFIC, "inside", str(8 << 20))
    assert done.returncode == 0, done.stderr
    wires = [int(line) for line in done.stdout.splitlines()]
    assert len(wires) == 2 and max(wires) < 64 << 10


# Endings


def test_the_first_failure_is_told_and_ends_the_others(namespaces: None) -> None:
    script = 'test "$RANK" = 2 && exit 7; trap "" TERM; while :; do sleep 0.1; done'
    done = run("2x2@1gbit", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert done.stderr == "perfscope bench: rank 2 ended with exit code 7 on host1; stopping the others\n"


def test_a_killed_rank_gives_128_and_the_signal(namespaces: None) -> None:
    done = run("2x1@1gbit", "--", "sh", "-c", 'test "$RANK" = 1 && kill -SEGV $$; exec sleep 60')
    assert done.returncode == 128 + signal.SIGSEGV
    assert "rank 1 was killed by signal 11 (SIGSEGV) on host1" in done.stderr


def test_a_command_that_is_not_there(namespaces: None) -> None:
    done = run("1x1@1gbit", "--", "no-such-command-anywhere")
    assert done.returncode == 127
    assert "no-such-command-anywhere: command not found" in done.stderr


def test_the_command_line_must_be_whole() -> None:
    assert run("2x2@1gbit").returncode == 2
    assert run("2x2@1gbit", "--").returncode == 2
    wrong = run("two@1gbit", "--", "true")
    assert wrong.returncode == 2 and "2x2@1gbit" in wrong.stderr and wrong.stderr.count("\n") == 1


class Cluster:
    """A running cluster whose ranks have children of their own, one of which has left the session."""

    def __init__(self, tmp_path: Path) -> None:
        self.mark = uuid4().hex
        self.folder = tmp_path
        script = (
            f'readlink /proc/self/ns/net > "{tmp_path}/net$RANK"; setsid sleep 300 & sleep 300 & '
            f'touch "{tmp_path}/ready$RANK"; wait'
        )
        self.process = subprocess.Popen(
            [*LAUNCH, "2x2@1gbit", "--", "sh", "-c", script],
            env={**user_environment(), MARK: self.mark},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 4)
        self.namespaces = {path.read_text().strip() for path in tmp_path.glob("net*")}
        (self.launcher,) = children(self.process.pid)

    def processes(self) -> list[int]:
        """Whatever was started below, launchers included."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(folder.name)] if state not in "ZX" else []
        return found

    def is_gone(self) -> bool:
        return not self.processes() and not self.namespaces & used_namespaces()


@pytest.fixture
def cluster(namespaces: None, tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path)
    try:
        yield one
    finally:
        for pid in one.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.process.communicate()


def children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found += [int(folder.name)] if int(fields[1]) == parent else []
    return found


def used_namespaces() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found.add(str(link.readlink()))
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("whom", ["guard", "launcher"])
def test_nothing_stays_behind_a_launcher_that_is_killed(cluster: Cluster, whom: str) -> None:
    assert len(cluster.namespaces) == 2 and len(cluster.processes()) == 2 + 4 * 3
    assert cluster.namespaces <= used_namespaces()
    os.kill(cluster.process.pid if whom == "guard" else cluster.launcher, signal.SIGKILL)
    wait_for(cluster.is_gone)
    assert cluster.process.wait(timeout=30) in (-signal.SIGKILL, 128 + signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_ranks(cluster: Cluster, number: signal.Signals) -> None:
    cluster.process.send_signal(number)
    assert cluster.process.wait(timeout=60) == 128 + number
    assert cluster.is_gone()


def test_a_signal_to_the_whole_group_as_ctrl_c_sends_it(cluster: Cluster) -> None:
    os.killpg(cluster.process.pid, signal.SIGINT)
    assert cluster.process.wait(timeout=60) == 128 + signal.SIGINT
    assert cluster.is_gone()


# Under perfscope run


@pytest.mark.torch
def test_each_emulated_host_is_a_host_of_the_run(namespaces: None, tmp_path: Path) -> None:
    """Ring all_reduce of S bytes between two ranks: each sends S, and its own host's counters say so."""
    pytest.importorskip("torch")
    repeats, size = 6, 8 << 20
    command = [*LAUNCH, "2x1@1gbit", "--", sys.executable, TRAFFIC, "ring", str(size), str(repeats)]
    options = ["-o", str(tmp_path / "run"), "--ceilings", "off"]
    done = subprocess.run(
        [*PERFSCOPE, "run", *options, "--", *command],
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["expected_ranks"], manifest["attached_ranks"]) == (2, 2)
    assert (manifest["launcher"], manifest["world_size"]) == ("cluster", 2)
    for rank, host in enumerate(("host0", "host1")):
        said = json.loads((tmp_path / f"run/ranks/{rank}/rank.json").read_text())
        assert said["host"] == host
        samples = read_samples(tmp_path / f"run/hosts/{host}/samples.jsonl", host)
        grown = {
            (one.metric, one.labels.get("interface")): one.values[-1] - one.values[0]
            for one in samples.series
        }
        sent, packets = grown["net_tx_bytes", "wire0"], grown["net_tx_packets", "wire0"]
        assert sent - FRAME_BYTES * packets == pytest.approx(repeats * size, rel=0.01)
        assert grown["net_rx_bytes", "wire0"] == pytest.approx(sent, rel=0.01)
