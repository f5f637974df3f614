"""POP's efficiencies of one run (METRICS §3)."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.efficiency import PopFactor


class Efficiency(Struct, frozen=True, kw_only=True):
    """Multiplicative: parallel_efficiency = load_balance x serialization x transfer, exactly as ratios.

    T is the wall of the analyzed steps, T_id the same on an ideal network, U_r the useful time of rank r, all
    of the same steps. None = not known; the reason is in the run's missing figures.
    """

    num_steps: int
    step_ns: int  # T per step
    ideal_step_ns: int | None  # T_id per step
    useful_ns: tuple[tuple[int, int], ...]  # (rank, U_r per step)
    load_balance: float  # mean U / max U
    lb_in: float | None  # inside nodes: model-parallel imbalance
    lb_out: float | None  # across nodes: lb_in x lb_out = load_balance; None: one host
    comm_efficiency: float  # max U / T
    serialisation: float | None  # max U / T_id
    transfer: float | None  # T_id / T
    parallel_efficiency: float  # mean U / T

    def value(self, factor: PopFactor) -> float | None:
        """None: not known.

        Raises:
            AttributeError: a factor of several runs.
        """
        factor_value: float | None = getattr(self, factor.value)
        return factor_value
