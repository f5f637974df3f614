"""Unequal stages and unequal experts, planted in emulated runs: named first, and what-ifs come true."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.findings import FindingKind
from tests.support.expert_run import expert_run
from tests.support.pipeline_run import pipeline_run
from tests.support.pipelines import Action, F, Simulated, gpipe, interleaved, one_f_one_b, simulated

SEEDS = 30
HIT_RATE = 0.95
WITHIN = 0.10  # median error of what-ifs
LEAST_GAIN = 0.15  # of the step: less is not planted
MS = 1_000_000
STEPS = 3


def gain_of(analysis: RunAnalysis, slug: str) -> float:
    return next((float(what_if.gain_ns) for what_if in analysis.what_ifs if what_if.id == slug), 0.0)


def luck(seed: int) -> Callable[[], float]:
    """The same draws for each seed."""
    rng = np.random.default_rng([seed, 3])
    return lambda: float(rng.uniform(0, 0.05))


class Planted:
    """A pipeline with one stage that takes longer, and the same with equal stages."""

    def __init__(self, seed: int, attempt: int) -> None:
        rng = np.random.default_rng([seed, attempt, 1])
        self.p, v = int(rng.integers(2, 5)), int(rng.integers(1, 3))
        self.m = self.p * int(rng.integers(2, 4))
        self.orders = [gpipe(self.p, self.m), one_f_one_b(self.p, self.m)][seed % 2]
        if v == 2:
            self.orders = interleaved(self.p, self.m, v)
        self.slow, factor = int(rng.integers(self.p * v)), float(rng.uniform(1.6, 2.4))
        self._link_ns = int(rng.integers(0, MS // 5))
        self._noise = rng.uniform(0, 0.1, size=(STEPS, self.p * v, self.m, 2))
        shares = [factor if stage == self.slow else 1.0 for stage in range(self.p * v)]
        self.steps = self._run(shares)
        self.equal = self._run([sum(shares) / len(shares)] * len(shares))

    def _run(self, shares: Sequence[float]) -> list[Simulated]:
        made, begin = [], MS
        for step in range(STEPS):
            duration = self._duration(step, shares)
            made.append(
                simulated(
                    self.orders,
                    duration,
                    link_ns=self._link_ns,
                    pause=lambda action: 20_000,
                    begin=begin,
                    step=step,
                )
            )
            begin += made[-1].active_ns + 5 * MS
        return made

    def _duration(self, step: int, shares: Sequence[float]) -> Callable[[Action], int]:
        def duration(action: Action) -> int:
            stage, k, work = action
            noise = 1 + self._noise[step, stage, k, int(work is F)]
            return round((MS if work is F else 2 * MS) * shares[stage] * float(noise))

        return duration

    @property
    def gain_ns(self) -> float:
        """What equal stages would bring, per step."""
        pairs = zip(self.steps, self.equal, strict=True)
        return sum(planted.active_ns - equal.active_ns for planted, equal in pairs) / STEPS

    @property
    def step_ns(self) -> float:
        return sum(step.active_ns for step in self.steps) / STEPS


def test_unequal_stages_are_named_first_and_balancing_them_comes_true(tmp_path: Path) -> None:
    hits, errors, said = 0, [], []
    for seed in range(SEEDS):
        drawn = (Planted(seed, attempt) for attempt in range(50))
        case = next(one for one in drawn if one.gain_ns >= LEAST_GAIN * one.step_ns)
        run = pipeline_run(tmp_path / str(seed), {tuple(range(case.p)): case.steps})
        analysis = analyze_run(run.read())
        finding = analysis.findings[0]
        hits += finding.id is FindingKind.STAGE_IMBALANCE and finding.rank == case.slow % case.p
        said.append(f"{seed}: {finding.id} {finding.rank} {finding.text.title}")
        error = abs(gain_of(analysis, "equal_stages") - case.gain_ns)
        errors.append(error / (case.step_ns - case.gain_ns))
    assert hits >= HIT_RATE * SEEDS, "\n".join(said)
    assert statistics.median(errors) <= WITHIN
    assert max(errors) <= 2 * WITHIN


def test_unequal_experts_are_named_first_and_balancing_them_comes_true(tmp_path: Path) -> None:
    hits, errors, said = 0, [], []
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, 2])
        p, num_layers = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        hot, tokens = int(rng.integers(p)), 100 * p
        mean = [tokens // p] * p
        loads = []
        for _ in range(STEPS):
            skewed = []
            for _ in range(num_layers):
                rest = rng.multinomial(tokens // 2, [1 / p] * p).tolist()
                skewed.append(
                    [load + (tokens - tokens // 2 if rank == hot else 0) for rank, load in enumerate(rest)]
                )
            loads.append(skewed)
        even = [[mean] * num_layers] * STEPS
        run, step_ns = expert_run(tmp_path / f"{seed}a", loads, noise=luck(seed))
        _, even_ns = expert_run(tmp_path / f"{seed}b", even, noise=luck(seed))
        analysis = analyze_run(run.read())
        finding = analysis.findings[0]
        hits += finding.id is FindingKind.EXPERT_IMBALANCE and finding.rank == hot
        said.append(f"{seed}: {finding.id} {finding.rank} {finding.text.title}")
        errors.append(abs(gain_of(analysis, "equal_experts") - (step_ns - even_ns)) / even_ns)
    assert hits >= HIT_RATE * SEEDS, "\n".join(said)
    assert statistics.median(errors) <= WITHIN
    assert max(errors) <= 2 * WITHIN
