"""Links as `perfscope doctor --links` measured them: latency and bandwidth fitted, and the rates reached.

The fit is that of predictions (`links.fit_link`), for calls that all ranks enter together. Of each size the
same number of calls is taken, from the faster half of its repetitions: disturbances only make them slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.predict.crossings import sharing
from perfscope.analysis.predict.link_rates import is_usable, largest_rate
from perfscope.analysis.predict.links import FittedLink, fit_link
from perfscope.analysis.predict.records import BETWEEN_HOSTS, MeasuredCall
from perfscope.rundir.host_records import LinkCall, LinksRecord
from perfscope.vocabulary.links import Transport

_QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5)
_FACTORS = {Transport.GLOO, Transport.NCCL, Transport.MPI}  # a message or a copy moves its bytes once


class FittedSeries(Struct, frozen=True, kw_only=True):
    """Calls of one kind over all sizes, as alpha + bytes x beta of their formula.

    Attributes:
        transport, what, collective, num_ranks, hosts, link_class: as in LinkCall; `hosts` without repeats.
        alpha_s: latency of one message.
        bytes_per_s: 1 / beta; None: no time per byte was to be seen.
        residual_ratio: median |measured - fitted| / fitted.
        num_calls: fitted on so many.
        largest_bytes: S of the largest size.
        largest_bytes_per_s: S over time there, by the median.
    """

    transport: str
    what: str
    collective: str
    num_ranks: int
    hosts: tuple[str, ...]
    link_class: str
    alpha_s: float
    bytes_per_s: float | None
    residual_ratio: float
    num_calls: int
    largest_bytes: int
    largest_bytes_per_s: float


def fitted_series(record: LinksRecord) -> list[FittedSeries]:
    """Every series of a measurement, in its order."""
    series: dict[tuple[object, ...], list[LinkCall]] = defaultdict(list)
    for row in record.calls:
        if is_usable(row):
            series[row.transport, row.what, row.collective, row.num_ranks, row.hosts].append(row)
    return [_fitted(rows) for rows in series.values()]


def calls_of_class(
    records: Iterable[LinksRecord], link_class: str, backend: str | None
) -> list[MeasuredCall]:
    """The calls over one class of links, as predictions take them from runs.

    Those of the backend; where it measured none, messages of TCP.
    """
    rows = [
        row for record in records for row in record.calls if is_usable(row) and row.link_class == link_class
    ]
    same = [row for row in rows if row.transport == backend]
    chosen = same or [row for row in rows if row.transport == Transport.TCP]
    return [call for row in chosen for call in _measured(row)]


def fit_measured(
    records: Iterable[LinksRecord], link_class: str, backend: str | None, rng: np.random.Generator
) -> FittedLink | None:
    """A class of links fitted to what was measured of it; None: nothing was."""
    calls = calls_of_class(records, link_class, backend)
    if not calls:
        return None
    fitted = fit_link(link_class, calls, backend, rng, by_size=True)
    return replace(fitted, used=replace(fitted.used, is_from_doctor=True))


def _measured(row: LinkCall) -> list[MeasuredCall]:
    shared = 1.0
    if row.link_class == BETWEEN_HOSTS and row.collective != "send":
        index_of_host = {host: index for index, host in enumerate(dict.fromkeys(row.hosts))}
        shared = sharing(row.collective, [[index_of_host[host] for host in row.hosts]])
    return [
        MeasuredCall(
            collective=row.collective,
            num_ranks=row.num_ranks,
            bytes=row.bytes,
            link_class=row.link_class,
            transfer_ns=seconds * 1e9,
            sharing=shared,
        )
        for seconds in np.quantile(row.seconds, _QUANTILES).tolist()
    ]


def _fitted(rows: Sequence[LinkCall]) -> FittedSeries:
    first = rows[0]
    backend = first.transport if first.transport in _FACTORS else None
    calls = [call for row in rows for call in _measured(row)]
    used = fit_link(first.link_class, calls, backend, np.random.default_rng(0), by_size=True).used
    return FittedSeries(
        transport=first.transport,
        what=first.what,
        collective=first.collective,
        num_ranks=first.num_ranks,
        hosts=tuple(dict.fromkeys(first.hosts)),
        link_class=first.link_class,
        alpha_s=used.cost.alpha_s,
        bytes_per_s=used.cost.bandwidth_bytes_per_s,
        residual_ratio=used.residual_ratio or 0.0,
        num_calls=sum(len(row.seconds) for row in rows),
        largest_bytes=max(row.bytes for row in rows),
        largest_bytes_per_s=largest_rate(rows) or 0.0,
    )
