"""Hosts whose clocks are known, and what ranks on them would record of collectives and messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls

EPOCH = 1_780_000_000_000_000_000
SECOND = 1_000_000_000
Floats = NDArray[np.float64]


@dataclass(kw_only=True)
class World:
    """Truth: clock of host h shows EPOCH + t + ahead_ns[h] + drift_ppm[h] x t at time t."""

    rng: np.random.Generator
    ahead_ns: list[int]
    drift_ppm: list[float]
    ranks_per_host: int = 1
    num_windows: int = 3
    apart_s: float = 120.0
    window_s: float = 1.0
    calls: list[tuple[int, MatchedCalls]] = field(default_factory=list)

    @property
    def hosts(self) -> dict[int, str]:
        here = self.ranks_per_host
        return {rank: f"host{rank // here:04d}" for rank in range(here * len(self.ahead_ns))}

    def shows(self, host: int, true_ns: Int64) -> Int64:
        gained = np.rint(true_ns * (self.drift_ppm[host] * 1e-6)).astype(np.int64)
        shown: Int64 = EPOCH + true_ns + self.ahead_ns[host] + gained
        return shown

    def times(self, window: int, num: int) -> Floats:
        """Calls of a window, in order."""
        begin = window * self.apart_s * SECOND
        return begin + np.sort(self.rng.uniform(0, self.window_s * SECOND, num))

    def collectives(
        self,
        num: int,
        *,
        jitter_ns: float = 5e3,
        late_ratio: float = 0.0,
        late_ns: float = 5e5,
        late_host: int = 1,
        bias_ns: float = 0.0,
        members: list[int] | None = None,
        num_windows: int | None = None,
    ) -> list[MatchedCalls]:
        """`num` all_reduces per window of the hosts in `members`.

        Args:
            num: per window.
            jitter_ns: standard deviation of when a rank leaves.
            late_ratio: of the calls, in which a rank of `late_host` leaves late.
            late_ns: mean of by how much.
            late_host: which.
            bias_ns: by how much it leaves late, always.
            members: hosts; all.
            num_windows: of the world's; all.
        """
        here = self.ranks_per_host
        members = list(range(len(self.ahead_ns))) if members is None else members
        host_of = [host for host in members for _ in range(here)]
        found = []
        for window in range(self.num_windows if num_windows is None else num_windows):
            enter = self.times(window, num) + self.rng.exponential(2e5, (len(host_of), num))
            enter[self.rng.integers(len(host_of))] += self.rng.exponential(1e6, num) * (
                self.rng.random(num) < 0.3
            )
            last = enter.max(axis=0)
            stay = np.exp(self.rng.uniform(np.log(5e4), np.log(2e6), num))  # 50 us to 2 ms
            leave = last + stay + self.rng.normal(0, jitter_ns, enter.shape)
            tardy = (np.array(host_of) == late_host)[:, None]
            often = tardy & (self.rng.random(enter.shape) < late_ratio)
            leave += often * self.rng.exponential(late_ns, enter.shape) + tardy * bias_ns
            leave = np.maximum(leave, last + 1000)
            ranks = tuple(host * here + local for host in members for local in range(here))
            found.append(self.record(window, ranks, host_of, enter, leave))
        return found

    def messages(self, a: int, b: int, num: int, *, delay_ns: float, extra_ns: float) -> list[MatchedCalls]:
        """`num` messages per window from host a's first rank to host b's."""
        found = []
        for window in range(self.num_windows):
            sent = self.times(window, num)
            got = sent + delay_ns + self.rng.exponential(extra_ns, num)
            enter = np.stack([sent, sent + self.rng.uniform(-1e5, 1e5, num)])
            leave = np.maximum(np.stack([sent + delay_ns / 4, got]), enter)
            ranks = (a * self.ranks_per_host, b * self.ranks_per_host)
            found.append(self.record(window, ranks, [a, b], enter, leave))
        return found

    def record(
        self, window: int, ranks: tuple[int, ...], host_of: list[int], enter: Floats, leave: Floats
    ) -> MatchedCalls:
        def seen(times: Floats) -> Int64:
            whole = np.rint(times).astype(np.int64)
            return np.stack([self.shows(host, row) for host, row in zip(host_of, whole, strict=True)])

        num = enter.shape[1]
        calls = MatchedCalls(
            ranks=ranks,
            enter=seen(enter),
            exit=seen(leave),
            size=np.full(num, 4096, dtype=np.int64),
            seq=np.arange(num),
            step=np.zeros(enter.shape, dtype=np.int64),
            launch=np.full(enter.shape, -1, dtype=np.int64),
            lane=np.full(enter.shape, -1, dtype=np.int64),
            num_unmatched=0,
        )
        self.calls.append((window, calls))
        return calls

    def errors(self, fit: ClockFit, *, against: int = 0) -> dict[str, int]:
        """Host -> how far its times on the reference's clock are from the truth, at worst, ns."""
        begin = np.arange(self.num_windows) * self.apart_s
        at = np.rint(np.concatenate([begin, begin + self.window_s]) * SECOND).astype(np.int64)
        names = list(dict.fromkeys(self.hosts.values()))
        truth = self.shows(against, at)
        return {
            name: int(np.abs(fit.to_reference(name, self.shows(host, at)) - truth).max())
            for host, name in enumerate(names)
        }
