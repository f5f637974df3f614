"""How other tools judge the same runs, as far as their rules can be applied to step times.

- one_run: one run against one, mean + 5 %: what most hand-written gates do.
- pytest_benchmark: `--benchmark-compare-fail=mean:5%`: mean of all steps, no test.
- pyperf: `pyperf compare_to`: two-sample t-test (95 %, pooled variance) on all values, slower if
significant; no
  threshold of its own (`--min-speed` is off by default). Given 5 % here, too, in `pyperf_5`.
- asv: `asv continuous`: Mann-Whitney U with p < 0.002 on all samples, and a factor (1.05 here, 1.1 by
default).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Runs = list[Floats]  # counted steps of each run
THRESHOLD = 1.05
_T_95, _ASV_P = 1.96, 0.002  # thousands of values: the t distribution is normal


def one_run(base: Runs, head: Runs) -> bool:
    return float(head[0].mean()) > THRESHOLD * float(base[0].mean())


def pytest_benchmark(base: Runs, head: Runs) -> bool:
    return float(np.concatenate(head).mean()) > THRESHOLD * float(np.concatenate(base).mean())


def pyperf(base: Runs, head: Runs) -> bool:
    first, second = np.concatenate(base), np.concatenate(head)
    n, m = len(first), len(second)
    pooled = ((n - 1) * first.var(ddof=1) + (m - 1) * second.var(ddof=1)) / (n + m - 2)
    t = (second.mean() - first.mean()) / math.sqrt(pooled * (1 / n + 1 / m))
    return bool(t > _T_95)


def pyperf_5(base: Runs, head: Runs) -> bool:
    return pyperf(base, head) and pytest_benchmark(base, head)


def asv(base: Runs, head: Runs) -> bool:
    first, second = np.concatenate(base), np.concatenate(head)
    n, m = len(first), len(second)
    order = np.argsort(np.concatenate((first, second)), kind="stable")
    ranks = np.empty(n + m)
    ranks[order] = np.arange(1, n + m + 1)
    z = (ranks[n:].sum() - m * (n + m + 1) / 2) / math.sqrt(n * m * (n + m + 1) / 12)
    p = math.erfc(abs(z) / math.sqrt(2))
    return bool(p < _ASV_P and np.median(second) > THRESHOLD * np.median(first))


PEERS = {
    "1 run, mean + 5 %": one_run,
    "pytest-benchmark": pytest_benchmark,
    "pyperf": pyperf,
    "pyperf + 5 %": pyperf_5,
    "asv": asv,
}
