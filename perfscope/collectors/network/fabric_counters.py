"""What the counters of a fabric port are called, and how wide they are. Part of `fabric`."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.collectors.context import Context
from perfscope.rundir.metrics import COUNTER, DERIVED, EXACT, SATURATING, Metric

# Bits of the error counters of the PortCounters attribute (InfiniBand specification 16.1.3.5;
# drivers/infiniband/core/sysfs.c). They stick at all ones.
ERROR_WIDTHS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
}
# Of the drivers' own counters (hw_counters) those that tell about loss, retries and congestion.
DRIVER_COUNTERS = frozenset(
    [
        # mlx5
        *("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "duplicate_request"),
        *("rnr_nak_retry_err", "implied_nak_seq_err", "np_cnp_sent", "np_ecn_marked_roce_packets"),
        *("rp_cnp_handled", "roce_adp_retrans", "roce_slow_restart", "rx_write_requests", "rx_read_requests"),
        # rxe
        *("sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "out_of_seq_request", "rcvd_seq_err"),
        *("completer_retry_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "rcvd_rnr_err"),
        *("send_rnr_err", "send_err", "link_downed"),
        # hfi1
        *("DmaWait", "RcResend", "RcTimeOut", "RcSeqNak", "RnrNak", "SwLinkUp", "SwLinkDn"),
        # irdma, EFA
        *("tcpRetransSegs", "retrans_pkts", "retrans_bytes", "retrans_timeout_events", "rx_drops"),
    ]
)

_FILES = "/sys/class/infiniband/DEV/ports/P/counters"
TX_PACKETS = Metric(
    name="fabric_tx_packets",
    unit="packets",
    kind=COUNTER,
    source=f"{_FILES}/port_xmit_packets",
    description="packets sent by the port",
)
RX_PACKETS = replace(
    TX_PACKETS,
    name="fabric_rx_packets",
    source=f"{_FILES}/port_rcv_packets",
    description="packets received by the port",
)
XMIT_WAIT = Metric(
    name="fabric_xmit_wait",
    unit="ticks",
    kind=SATURATING,
    source=f"{_FILES}/port_xmit_wait",
    description="ticks with data to send and no credits: congestion; how long a tick is differs by device",
    limit=2**32 - 1,
)
ERRORS = Metric(
    name="fabric_errors",
    unit="events",
    kind=SATURATING,
    source=f"{_FILES}/COUNTER",
    description="errors of the port",
    limit=2**16 - 1,
)
HW = Metric(
    name="fabric_hw",
    unit="events",
    kind=COUNTER,
    source="/sys/class/infiniband/DEV/ports/P/hw_counters/COUNTER",
    description="the driver's own counters; refreshed every `lifespan` ms (about 10)",
)


def saturating(metric: Metric, width: int) -> Metric:
    """The same, sticking at `width` bits of ones."""
    return replace(metric, kind=SATURATING, limit=2**width - 1)


def byte_metric(way: str, folder: str, word: int, extended: bool, shared: bool = False) -> Metric:
    """fabric_tx_bytes or fabric_rx_bytes.

    Args:
        way: tx or rx.
        folder: of the file it is read from.
        word: bytes that one unit stands for.
        extended: counts to 64 bits; else it sticks at 2**32 - 1 (17 GB: 1.4 s at 100 Gb/s).
        shared: other traffic of an interface is in it.
    """
    doing = "sent" if way == "tx" else "received"
    name = f"{way}_bytes" if word == 1 else f"port_{'xmit' if way == 'tx' else 'rcv'}_data"
    metric = Metric(
        name=f"fabric_{way}_bytes",
        unit="bytes",
        kind=COUNTER,
        source=f"{folder}/{name}",
        description=f"bytes {doing} by the port" + (", and by all else on its interface" if shared else ""),
        scale=float(word),
        quality=DERIVED if shared else EXACT,
    )
    return metric if extended else saturating(metric, 32)


def is_extended(ctx: Context, folder: str) -> bool:
    """Whether the data counters of a `counters` folder have 64 bits.

    The width cannot be read. The kernel shows the unicast counters only where the adapter has the extended
    set; an adapter that has the older extended set ("no IETF") shows none, yet counts beyond 32 bits.
    """
    if ctx.exists(f"{folder}/unicast_xmit_packets"):
        return True
    values = [ctx.read_int(f"{folder}/port_{way}_data") or 0 for way in ("xmit", "rcv")]
    return max(values) > 2**32 - 1
