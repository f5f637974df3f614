"""Every scheme there is. Adding one: its class, and a line here."""

from __future__ import annotations

from difflib import get_close_matches

from perfscope.runners.config import BenchError
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.cp_sequence import ContextAllToAll, ContextParallel, ContextRing
from perfscope.runners.schemes.dp_adpsgd import AdPsgd
from perfscope.runners.schemes.dp_ddp import DDP
from perfscope.runners.schemes.dp_fsdp import FSDP, HSDP
from perfscope.runners.schemes.dp_gossip import Gossip
from perfscope.runners.schemes.dp_hierarchical import Hierarchical
from perfscope.runners.schemes.dp_layers import ForwardOverlap, Packed, PerLayer
from perfscope.runners.schemes.dp_local import DiLoCo, LocalSGD
from perfscope.runners.schemes.dp_update import DistributedUpdate
from perfscope.runners.schemes.easgd_server import EasgdAsync, EasgdAsyncMom, EasgdOriginal
from perfscope.runners.schemes.easgd_sync import EasgdSync1, EasgdSync2, EasgdSync3, EasgdSyncAr
from perfscope.runners.schemes.emb_tables import ColumnWise, RowWise, TableWise
from perfscope.runners.schemes.hogwild import EasgdHogwild, HogwildSgd
from perfscope.runners.schemes.hy_auto import Auto
from perfscope.runners.schemes.hy_mp import ChannelData, FcTensorData, FilterData
from perfscope.runners.schemes.hy_numa_replica import NumaReplica
from perfscope.runners.schemes.hy_owt import OneWeirdTrick
from perfscope.runners.schemes.hy_pp_dp import PipelineDataParallel
from perfscope.runners.schemes.mesh_axes import MeshParallel
from perfscope.runners.schemes.mp_channel import Channel
from perfscope.runners.schemes.mp_fctp import FcTensorParallel
from perfscope.runners.schemes.mp_filter import Filter
from perfscope.runners.schemes.mp_spatial import Spatial
from perfscope.runners.schemes.pp_schedules import GPipe, Interleaved, OneForwardOneBackward
from perfscope.runners.schemes.ps_async import BoundedStaleness, PsAsyncMsgd, PsAsyncSgd
from perfscope.runners.schemes.ps_sync import PsSync
from perfscope.runners.schemes.serial import Serial

SCHEMES: tuple[type[Scheme], ...] = (
    Serial,
    DDP,
    PerLayer,
    Packed,
    ForwardOverlap,
    DistributedUpdate,
    FSDP,
    HSDP,
    Hierarchical,
    LocalSGD,
    DiLoCo,
    Gossip,
    AdPsgd,
    ContextParallel,
    ContextRing,
    ContextAllToAll,
    TableWise,
    RowWise,
    ColumnWise,
    GPipe,
    OneForwardOneBackward,
    Interleaved,
    Filter,
    Channel,
    FcTensorParallel,
    Spatial,
    FilterData,
    ChannelData,
    FcTensorData,
    OneWeirdTrick,
    PipelineDataParallel,
    Auto,
    MeshParallel,
    NumaReplica,
    PsSync,
    PsAsyncSgd,
    PsAsyncMsgd,
    BoundedStaleness,
    HogwildSgd,
    EasgdOriginal,
    EasgdAsync,
    EasgdAsyncMom,
    EasgdHogwild,
    EasgdSync1,
    EasgdSync2,
    EasgdSync3,
    EasgdSyncAr,
)


def find_scheme(name: str) -> type[Scheme]:
    """The scheme of that canonical name.

    Raises:
        BenchError: there is none; the line names the nearest.
    """
    for scheme in SCHEMES:
        if scheme.name == name:
            return scheme
    near = get_close_matches(name, [scheme.name for scheme in SCHEMES], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BenchError(f"there is no scheme {name!r}; {hint}`perfscope bench list` shows them all")
