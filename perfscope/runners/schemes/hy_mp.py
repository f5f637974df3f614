"""hy.filter_dp, hy.channel_dp, hy.fctp_dp: groups that split the model, averaged over data parts."""

from __future__ import annotations

from perfscope.runners.schemes.base import hybrid_axes
from perfscope.runners.schemes.data_average import OVERLAP
from perfscope.runners.schemes.dp_gradients import CODECS
from perfscope.runners.schemes.mp_channel import Channel
from perfscope.runners.schemes.mp_fctp import FcTensorParallel
from perfscope.runners.schemes.mp_filter import Filter
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Topology

_AVERAGED = (
    "; each rank packs the gradients of what it holds into one buffer, which the data group averages "
    "before the update; with +overlap each layer's as soon as the backward pass has completed it."
)


class FilterData(Filter):
    """Filter parallelism in D groups."""

    name = "hy.filter_dp"
    summary = "Filter parallelism inside groups of M ranks, data parallelism over D groups (Intel Caffe)."
    rule = "mp.filter in each group on its b = B/D samples" + _AVERAGED
    volume = (
        "sum over layers l >= 2 of 2(M-1)/M * (B/D)|x_l| e, (M-1)/M * (B/D)|y| e for the output, and "
        "2(D-1)/D * (|w|/M) e"
    )
    splits = (Axis.DP, Axis.TP)
    modifiers = CODECS | {OVERLAP}
    axes = hybrid_axes(Topology.ALL_GATHER, "all_gather, reduce_scatter; all_reduce")


class ChannelData(Channel):
    """Channel parallelism in D groups."""

    name = "hy.channel_dp"
    summary = "Channel parallelism inside groups of M ranks, data parallelism over D groups (MLSL)."
    rule = "mp.channel in each group on its b = B/D samples" + _AVERAGED
    volume = (
        "sum over layers between the first and the last of 2(M-1)/M * (B/D)|y_l| e, 2(M-1)/M * (B/D)|y| e "
        "for the last, and 2(D-1)/D * (|w|/M) e"
    )
    splits = (Axis.DP, Axis.TP)
    modifiers = CODECS | {OVERLAP}
    axes = hybrid_axes(Topology.ALL_GATHER, "reduce_scatter, all_gather; all_reduce")


class FcTensorData(FcTensorParallel):
    """Split linear layers in D groups."""

    name = "hy.fctp_dp"
    summary = "Linear layers split inside groups of M ranks, data parallelism over D groups."
    rule = "mp.fc_tp in each group on its b = B/D samples" + _AVERAGED
    volume = "mp.fc_tp with b = B/D, and 2(D-1)/D * (|w_conv| + |w_fc|/M) e"
    splits = (Axis.DP, Axis.TP)
    modifiers = CODECS | {OVERLAP}
    axes = hybrid_axes(Topology.ALL_REDUCE, "all_reduce in groups and over data parts")
