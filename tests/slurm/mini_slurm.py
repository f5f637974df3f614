"""A throw-away Slurm on this machine: munged, slurmctld and some slurmd, without systemd.

Everything lies in one folder and ends with `down`. Emulated nodes share the host and its name;
SLURMD_NODENAME tells them apart. With `accounting`, slurmdbd and a MariaDB of its own keep what sacct shows.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.run_support import user_environment

NEEDED = ("munged", "slurmctld", "slurmd", "srun")
NEEDED_FOR_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
_MEMORY_MB = 2000
_END_S = 5.0

_SLURM_CONF = """\
ClusterName=mini
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
InactiveLimit=0
KillWait=5
OverTimeLimit=0
MinJobAge=7200
SlurmctldTimeout=30
SlurmdTimeout=30
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.log
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
{spare}
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Sockets=1 "
    "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN"
)
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/munge.socket
AccountingStoreFlags=job_comment,job_env,job_script
"""
_SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
DebugLevel=info
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
"""
_MY_CNF = """\
[mysqld]
user=root
datadir={folder}/mysql
socket={folder}/mysql.sock
pid-file={folder}/mysql.pid
skip-networking
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
[client]
socket={folder}/mysql.sock
"""


class NoSlurm(Exception):
    """Slurm cannot be brought up here; the text says why."""


def why_not(*, accounting: bool = False) -> str:
    """Why there can be no Slurm of our own here; "" when there can."""
    missing = [
        name for name in (*NEEDED, *(NEEDED_FOR_ACCOUNTING if accounting else ())) if not shutil.which(name)
    ]
    if missing:
        listed = "sh tests/system-packages.sh tests/slurm/debian-packages.txt"
        return f"not installed: {', '.join(missing)} ({listed})"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started as root"


@dataclass(kw_only=True)
class MiniSlurm:
    """A cluster in `folder`.

    Attributes:
        folder: for configuration, state and logs; on a path that every user may enter.
        num_nodes, num_cpus: nodes of the partition "debug", and CPUs of each.
        num_spare: nodes of a partition "spare", for jobs that go on beside those of "debug": whatever asks
            of jobs and nodes here means "debug" alone.
        accounting: whether sacct is to work (2 s more).
    """

    folder: Path
    num_nodes: int = 2
    num_cpus: int = 2
    num_spare: int = 0
    accounting: bool = False
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)
    _database_port: int = field(default=0, init=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.num_nodes + 1))

    @property
    def spare_nodes(self) -> tuple[str, ...]:
        return tuple(f"spare{number}" for number in range(1, self.num_spare + 1))

    @property
    def env(self) -> dict[str, str]:
        """A user's environment whose Slurm commands mean this cluster, with nothing of another in it."""
        kept = {k: v for k, v in user_environment().items() if not k.startswith(("SLURM", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(
        self, command: Sequence[str], *, cwd: Path, timeout: float = 60, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`command` to its end, in this cluster's environment with `variables` added."""
        return subprocess.run(
            command,
            cwd=cwd,
            env={**self.env, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def state(self, job: int | str) -> str:
        """What the controller calls the state of a job: PENDING, RUNNING, COMPLETED, ...; "" = not known."""
        answer = self.ask("scontrol", "show", "job", str(job), "-o")
        return next((w.partition("=")[2] for w in answer.split() if w.startswith("JobState=")), "")

    def await_state(self, job: int | str, *wanted: str, limit_s: float = 60) -> str:
        """Wait for a job to be in one of the states; the one it is in then, whichever that is."""
        self._within(limit_s, lambda: self.state(job) in wanted, pause_s=0.2)
        return self.state(job)

    def jobs(self, *states: str) -> list[str]:
        """Ids of the jobs in "debug", of those in one of `states`."""
        wanted = ("-t", ",".join(states)) if states else ()
        return self.ask("squeue", "-h", "-p", "debug", *wanted, "-o", "%A").split()

    def clear(self) -> None:
        """Cancel whatever is left, and wait until the nodes are free."""
        left = self.jobs()
        if left:
            self.ask("scancel", *left)
        if not self._within(30, self._all_idle, pause_s=0.1):
            raise NoSlurm(f"the nodes do not become idle; see {self.folder}/log")

    def up(self) -> None:
        """Start everything and wait until all nodes are idle.

        Raises:
            NoSlurm: a daemon does not come up.
        """
        self._configure()
        munge = self.folder / "munge"
        self._start("munged", "munged", "-F", "--force", *_munge_options(munge))
        _require(self._within(10, (munge / "munge.socket").exists), "munged", self.folder)
        if self.accounting:
            self._start_accounting()
        conf = str(self.folder / "slurm.conf")
        self._start("slurmctld", "slurmctld", "-D", "-i", "-f", conf)
        for name in (*self.nodes, *self.spare_nodes):
            self._start(f"slurmd-{name}", "slurmd", "-D", "-N", name, "-f", conf)
        _require(
            self._within(30, lambda: self._all_idle("spare") and self._all_idle()), "slurmctld", self.folder
        )

    def down(self) -> None:
        """End every daemon, munged and the database last."""
        last = ("slurmctld", "slurmdbd", "mariadbd", "munged")
        order = sorted(self._daemons, key=lambda name: last.index(name) if name in last else -1)
        for name in order:
            self._end(name)

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_END_S)
        except subprocess.TimeoutExpired:  # a slurmd whose controller never came ignores SIGTERM
            daemon.kill()
            daemon.wait(_END_S)

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands says; "" when it fails."""
        answer = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=30, check=False
        )
        return answer.stdout if answer.returncode == 0 else ""

    def _all_idle(self, partition: str = "debug") -> bool:
        states = self.ask("sinfo", "-h", "-N", "-p", partition, "-o", "%T").split()
        count = self.num_nodes if partition == "debug" else self.num_spare
        return len(states) == count and set(states) <= {"idle"}

    def _configure(self) -> None:
        for name in ("state", "spool", "log", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o755)  # munge refuses a socket in a folder that others cannot enter
        key = self.folder / "munge" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        names = (*self.nodes, *self.spare_nodes)
        controller, accounting, *ports = _free_ports(len(names) + 2)
        host = socket.gethostname().split(".")[0]
        nodes = [
            _NODE.format(name=name, host=host, port=port, cpus=self.num_cpus, memory=_MEMORY_MB)
            for name, port in zip(names, ports, strict=True)
        ]
        text = _SLURM_CONF.format(
            folder=self.folder,
            host=host,
            port=controller,
            nodes="\n".join(nodes),
            names=",".join(self.nodes),
            spare=f"PartitionName=spare Nodes={','.join(self.spare_nodes)} State=UP"
            if self.num_spare
            else "",
        )
        if self.accounting:
            text += _ACCOUNTING.format(folder=self.folder, port=accounting)
            database = self.folder / "slurmdbd.conf"
            database.write_text(_SLURMDBD_CONF.format(folder=self.folder, port=accounting))
            database.chmod(0o600)
            (self.folder / "my.cnf").write_text(_MY_CNF.format(folder=self.folder))
            self._database_port = accounting
        (self.folder / "slurm.conf").write_text(text)
        # Without this file slurmd 22.05 looks for a cgroup plugin by itself, and may not find one.
        (self.folder / "cgroup.conf").write_text(
            "CgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"
        )

    def _start_accounting(self) -> None:
        options = (f"--defaults-file={self.folder}/my.cnf",)
        install = (
            "mariadb-install-db",
            *options,
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        )
        with (self.folder / "log" / "install-db.out").open("wb") as log:
            if subprocess.run(install, stdout=log, stderr=log, check=False).returncode:
                raise NoSlurm(f"mariadb-install-db failed: {self.folder}/log/install-db.out")
        self._start("mariadbd", "mariadbd", *options)
        _require(self._within(20, (self.folder / "mysql.sock").exists), "mariadbd", self.folder)
        self._start("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=str(self.folder / "mysql.sock"))
        _require(self._within(20, self._database_answers), "slurmdbd", self.folder)
        add = ("sacctmgr", "-i", "add", "cluster", "mini")
        _require(self._within(10, lambda: bool(self.ask(*add))), "sacctmgr", self.folder)

    def _database_answers(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self._database_port)) == 0

    def _start(self, name: str, *command: str, **variables: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.env, **variables},
                start_new_session=True,
                cwd=self.folder,
            )

    @staticmethod
    def _within(limit_s: float, condition: Callable[[], bool], pause_s: float = 0.05) -> bool:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(pause_s)
        return False


def _munge_options(folder: Path) -> Sequence[str]:
    kinds = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    return [f"--{kind}={folder}/munge.{kind.removesuffix('-file')}" for kind in kinds]


def _require(came_up: bool, name: str, folder: Path) -> None:
    if not came_up:
        raise NoSlurm(f"{name} did not come up; see {folder}/log")


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different: held until all are known."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
