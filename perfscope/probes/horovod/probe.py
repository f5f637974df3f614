"""The Horovod probe: who this process is, what its collectives move. Steps are the framework's.

torch: every call of Horovod ends in one of a few functions of `horovod.torch.mpi_ops` that hand a tensor to
Horovod's own thread, and in `synchronize`, which waits for it; those are looked at (horovod_torch.py).
MXNet: the operators are in MXNet's trace, the probe adds up the bytes of a step.
TensorFlow: its collectives are operators of TensorFlow's graph and are in that trace, without sizes.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Dict, List, Optional

from ...vocabulary.figures import Figure
from ..frames import around
from ..mxnet.store import bytes_of, data_parallel
from ..process import Process, current
from ..ranks import Identity
from .timeline import join_timeline_at_exit
from .torch import TorchCalls, replace_everywhere

GROUP = "global"
_TENSORFLOW = "Horovod's calls are operators of TensorFlow's graph: their trace tells no sizes"
_MXNET_CALLS = {  # function of horovod.mxnet.mpi_ops -> collective
    "allreduce": "all_reduce",
    "allreduce_": "all_reduce",
    "grouped_allreduce": "all_reduce",
    "grouped_allreduce_": "all_reduce",
    "allgather": "all_gather",
    "grouped_allgather": "all_gather",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "grouped_reducescatter": "reduce_scatter",
}


def arm(framework: str) -> None:
    """horovod.torch, horovod.tensorflow or horovod.mxnet has just been imported."""
    probe = the_probe()
    probe.install(framework)


@functools.lru_cache(maxsize=None)
def the_probe() -> "HorovodProbe":
    return HorovodProbe(current())


class HorovodProbe:
    """What Horovod adds to the probe of the framework it serves."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._module = ""
        process.on_identity(self.identity)
        self._reset()
        process.on_reset(self._reset)

    def _reset(self) -> None:
        self._process.on_finish(self.facts)

    def install(self, framework: str) -> None:
        self._module = framework
        module = sys.modules[framework]
        if framework == "horovod.torch":
            calls = TorchCalls(self._process, self.group_of, self.facts)
            calls.install(module)
            self._process.on_reset(calls.reset)
        elif framework == "horovod.mxnet":
            self._install_mxnet(module)
        join_timeline_at_exit(self._process)

    # -- who ------------------------------------------------------------------------------------------

    @property
    def horovod(self) -> Optional[Any]:
        """Horovod's module once `init` was called, else None."""
        module = sys.modules.get(self._module)
        ready = getattr(module, "is_initialized", None)
        return module if ready is not None and ready() else None

    def identity(self) -> Optional[Identity]:
        horovod = self.horovod
        if horovod is None:
            return None
        return Identity(horovod.rank(), horovod.local_rank(), horovod.size(), "horovod")

    def group_of(self, process_set: Any) -> Dict[str, Any]:
        """Name and global ranks of a process set; None = all ranks."""
        number = int(getattr(process_set, "process_set_id", 0) or 0)
        ranks: List[int] = []
        if number:
            ranks = [int(rank) for rank in getattr(process_set, "ranks", None) or ()]
        horovod = self.horovod
        if not ranks and horovod is not None:
            ranks = list(range(horovod.size()))
        name = "process set %d" % number if number else GROUP
        return {"name": name, "ranks": ranks, "backend": self.backend()}

    def backend(self) -> str:
        """What moves the bytes of host tensors, as Horovod was built and started."""
        horovod = self.horovod
        for name in ("mpi", "gloo"):
            if horovod is not None and getattr(horovod, name + "_enabled", bool)():
                return "horovod " + name
        return "horovod"

    def facts(self) -> Dict[str, Any]:
        """For rank.json."""
        recorder = self._process.recorder
        if self.horovod is None or recorder is None:
            return {}
        if self._module == "horovod.tensorflow":
            self._process.missing(Figure.COLLECTIVE_BYTES, "bytes of Horovod's collectives", _TENSORFLOW)
        mine = dict(self.group_of(None), desc="horovod")
        other_groups = [group for group in recorder.meta.get("groups") or () if group.get("name") != GROUP]
        facts: Dict[str, Any] = {"groups": [mine, *other_groups], "backend": self.backend()}
        root, size = recorder.meta.get("root"), len(mine["ranks"])
        if self._module == "horovod.mxnet":
            root = data_parallel(1)
        if isinstance(root, dict) and root.get("dp_size") == 1 < size:
            facts["root"] = dict(
                root, dp_size=size
            )  # who was asked (torch.distributed) knows of one rank only
        return facts

    # -- MXNet ----------------------------------------------------------------------------------------

    def _install_mxnet(self, module: Any) -> None:
        operations = sys.modules["horovod.mxnet.mpi_ops"]
        for name, collective in _MXNET_CALLS.items():
            if hasattr(operations, name):
                original = getattr(operations, name)
                replace_everywhere("horovod.mxnet", original, self._counted(original, collective))

    def _counted(self, original: Any, collective: str) -> Any:
        from ..mxnet.probe import the_probe as mxnet_probe  # no cycle; only where there is an MXNet

        probe = mxnet_probe()

        @around(original)
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if probe.in_window:
                probe.guarded("horovod", self._count, probe, collective, tensor, kwargs)
            return original(tensor, *args, **kwargs)

        return call

    def _count(self, probe: Any, collective: str, tensor: Any, kwargs: Dict[str, Any]) -> None:
        group = self.group_of(kwargs.get("process_set"))
        size = len(group["ranks"])
        for item in tensor if isinstance(tensor, (list, tuple)) else [tensor]:
            given, dtype = bytes_of(item)
            taken = given * size if collective == "all_gather" else given
            if collective == "reduce_scatter":
                taken = given // max(1, size)
            probe.store.count(collective, group["name"], size, dtype, given, taken)
