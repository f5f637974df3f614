"""The probe of programs that call MPI through mpi4py, with or without another framework.

It adds to the run who this process is, its communicators, and in windows every call of MPI. Where no
framework cuts the steps and the program does not call `perfscope.step()`, it looks for the loop of its
collectives. A program that only imports mpi4py leaves no trace.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Dict, Optional

from ...vocabulary.figures import Figure
from .. import own_steps
from ..process import Process, current
from ..ranks import Identity
from . import requests as mpi_requests
from . import windows as mpi_windows
from .calls import Timing
from .comms import Comms
from .groups import Places
from .steps import LoopSteps

_KNOWN = ("3", "4")  # major versions of mpi4py
_REPLACED = ("COMM_WORLD", "COMM_SELF", "Request", "Prequest", "Win")
NO_LOOP = (
    "the collectives of this mpi4py program do not repeat in a loop that perfscope could find; "
    "call perfscope.step() at the top of the main loop"
)


def arm(framework: str) -> None:
    """mpi4py.MPI has just been imported.

    Raises:
        RuntimeError: it is another mpi4py than we know; nothing was changed.
    """
    process = current()
    MpiProbe(process, sys.modules[framework])


class MpiProbe:
    """The probe of one process that has mpi4py.

    Args:
        process: of which this is a probe.
        mpi: the module mpi4py.MPI.

    Raises:
        RuntimeError: the module is none that we know; it was left as it is.
    """

    def __init__(self, process: Process, mpi: Any) -> None:
        self._process = process
        self._mpi = mpi
        self._version = str(getattr(sys.modules.get("mpi4py"), "__version__", ""))
        self._identity: Optional[Identity] = None
        self._told = False
        before = {name: getattr(mpi, name, None) for name in _REPLACED}
        try:
            self.places = Places(mpi)
            self.timing = Timing(mpi, process.calls, self.places, self._failed, self._adopt)
            comms = Comms(self.timing, self._leave)
            mpi_requests.install(self.timing)
            mpi_windows.install(self.timing)
            comms.install()
        except AttributeError as error:
            for name, value in before.items():
                if value is not None:
                    setattr(mpi, name, value)
            raise RuntimeError(
                "mpi4py %s is not known to this perfscope (%s): its calls are not recorded"
                % (self._version, error)
            ) from None
        self._loop = LoopSteps(
            self.timing,
            own_steps.the_probe,
            lambda: process.owner,
            own_steps.NAME,
            self._adopt,
            self._identify,
        )
        process.on_identity(self._identify)
        process.on_reset(self._reset)
        process.on_finish(self._finish)
        atexit.register(self._at_exit, os.getpid())
        self._identify()  # while MPI can be asked
        if self._identity is not None and self._identity.world_size == 1:
            self._loop.stop()  # alone: there is no communication to make steps of

    def _reset(self) -> None:
        """In a forked child: MPI is not to be used there, and nothing is recorded."""
        self.timing.off = True
        self.timing.log.active = False
        self._loop.stop()

    def _failed(self, where: str, error: Exception) -> bool:
        return self._process.guard.fault("mpi " + where, error) or self._process.broken

    # -- who this is ------------------------------------------------------------------------------------

    def _identify(self) -> Optional[Identity]:
        """From COMM_WORLD, unless torch.distributed, which may count differently, or it is alone."""
        mpi = self._mpi
        if self._identity is None and mpi.Is_initialized() and not mpi.Is_finalized():
            world = mpi.COMM_WORLD
            self._identity = Identity(world.Get_rank(), None, world.Get_size(), "mpi4py")
        dist = sys.modules.get("torch.distributed")
        if dist is not None and getattr(dist, "is_initialized", lambda: False)():
            return None
        identity = self._identity
        return identity if identity is not None and identity.world_size != 1 else None

    def _adopt(self) -> None:
        """Steps are cut or calls recorded: rank.json is to name mpi4py, unless another framework is there."""
        if self._told or self._process.recorder is None:
            return
        self._told = True
        self._process.recorder.save_meta(**self._facts())
        self._process.on_finish(self._facts)  # behind that of the one who cuts the steps, which would win
        if self._is_alone():
            self._process.missing(
                Figure.COMPUTATION,
                "what the ranks compute",
                "no profiler looks into it: all that lies between its calls of MPI is taken for computation",
            )
        if self._version.partition(".")[0] not in _KNOWN:
            self._process.note(
                "mpi4py %s is newer than this perfscope knows: some calls may not be recorded" % self._version
            )

    def _is_alone(self) -> bool:
        """No framework computes here that perfscope knows."""
        return self._process.owner == own_steps.NAME and own_steps.the_probe().lender is None

    def _facts(self) -> Dict[str, Any]:
        if not self._is_alone():
            return {}
        facts: Dict[str, Any] = {"framework": {"name": "mpi4py", "version": self._version}, "backend": "mpi"}
        if self._identity is not None:  # perfscope.step(samples) gets each process's own
            width = self._identity.world_size
            facts["root"] = {"name": "", "type": "", "data_parallel": True, "dp_size": width}
        return facts

    def _finish(self) -> Dict[str, Any]:
        """Communicators beside the groups of another framework. Asks MPI nothing: it may be finalised."""
        recorder = self._process.recorder
        rows = self.places.rows()
        if recorder is None or not rows:
            return {}
        names = {row["name"] for row in rows}
        other_groups = [row for row in recorder.meta.get("groups") or [] if row.get("name") not in names]
        facts: Dict[str, Any] = {"groups": [*other_groups, *rows]}
        root = recorder.meta.get("root")
        others_there = self._identity is not None and self._identity.world_size != 1
        if others_there and isinstance(root, dict) and root.get("dp_size") == 1:
            # torch's word where torch.distributed is not in use; what MPI is used for it does not know.
            facts["root"] = dict(root, data_parallel=False, dp_size=None)
        library = str(self._mpi.Get_library_version()).strip().splitlines()[0] if self._usable() else ""
        return {**facts, **({"mpi_library": library[:200]} if library else {})}

    def _usable(self) -> bool:
        return bool(self._mpi.Is_initialized() and not self._mpi.Is_finalized())

    # -- the end ----------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """The job is about to be aborted: what is known is written, for no exit handler will run."""
        try:
            self._process.finish(os.getpid())
        except Exception as error:  # noqa: BLE001 - the boundary: the abort is the program's own
            self._failed("abort", error)

    def _at_exit(self, pid: int) -> None:
        """A program that spoke with other ranks, but in no loop: say what would help."""
        try:
            process, loop = self._process, self._loop
            if pid != os.getpid() or process.recorder is not None or process.broken:
                return
            if (not loop.num_shared and not loop.num_others) or self._identify() is None:
                return
            process.config = dict(process.config, sampling=None)  # there is nothing left to count
            process.open()
            process.note(NO_LOOP)
            process.finish(pid)
        except Exception as error:  # noqa: BLE001 - the boundary: the exit code is the program's own
            self._failed("exit", error)
