"""At which bandwidth another scheme would win, as modeled.

Time of one batch at b times the bandwidth: t(b) = rest + max(0, e + w (1 / b - 1)), with e = exposed
communication, rest = everything else, w = time the host's link needs for its bytes (wire bytes of a host over
the link's speed), so that latency stays as it is and what hides now comes out on slower links. Where the
bytes or the link's speed are not known, w = e: all exposed communication goes as 1 / b.

At k times the batch: t(k) = optimizer + k (rest - optimizer) + max(0, e + w (f + (1 - f) k - 1)). f is the
share of the bytes that does not grow with the batch: weights and gradients do not, activations do. Only where
bytes and link speed are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.study.results import BatchTurn, SchemeRow, StudyRun, Turn
from perfscope.messages.comparison import schemes as words
from perfscope.vocabulary.comparison import NotModeled
from perfscope.vocabulary.links import BETWEEN_HOSTS

FARTHEST = 16.0  # times the bandwidth, either way: farther off the model says nothing


class Modelled(Struct, frozen=True, kw_only=True):
    """One row's batch; ns. `link_class` "" = its bytes between hosts are not known."""

    title: str
    unexposed: float
    exposed: float
    wire: float
    is_known: bool  # `wire` follows from bytes and the link's speed
    link_class: str
    link_bytes_per_s: float | None
    optimizer: float = 0.0  # part of `unexposed`
    fixed_share: float | None = None

    def at(self, slowness: float) -> float:
        """Time of a batch with 1 / `slowness` of the bandwidth."""
        return self.unexposed + max(0.0, self.exposed + self.wire * (slowness - 1))

    def at_batch(self, factor: float) -> float:
        """Time of a batch `factor` times as large; `fixed_share` must be known."""
        fixed = self.fixed_share or 0.0
        sent = self.wire * (fixed + (1 - fixed) * factor - 1)
        return self.optimizer + factor * (self.unexposed - self.optimizer) + max(0.0, self.exposed + sent)


def model_of(row: SchemeRow, run: StudyRun) -> Modelled | NotModeled:
    """The row as modeled, or why it cannot be. `run` is one of its runs."""
    if (run.num_hosts or 1) < 2:
        return NotModeled.ONE_HOST
    if not row.samples_per_s or not row.batch:
        return NotModeled.NO_BATCH_TIME
    share = row.composition.share("exposed_comm") if row.composition else None
    if share is None:
        return NotModeled.NO_TRACED_STEP
    batch = row.batch / row.samples_per_s * 1e9
    exposed = share * batch
    links = [link for link in row.links if link.link_class in BETWEEN_HOSTS]
    sent = max((link.wire or link.predicted_wire for link in links), default=None)
    speed = run.machine.link_bytes_per_s
    is_known = sent is not None and speed is not None
    wire = sent / (run.num_hosts or 1) / speed * 1e9 if sent is not None and speed is not None else exposed
    return Modelled(
        title=row.title,
        unexposed=batch - exposed,
        exposed=exposed,
        wire=min(wire, batch),  # it cannot have taken longer than the batch did
        is_known=is_known,
        link_class=max(links, key=lambda link_bytes: link_bytes.predicted_wire).link_class if links else "",
        link_bytes_per_s=speed,
        optimizer=(row.composition.share("optimizer") or 0.0) * batch if row.composition else 0.0,
        fixed_share=run.fixed_share,
    )


def turns_against(winner: Modelled, rivals: Sequence[Modelled]) -> tuple[Turn, ...]:
    """Where each of the others would overtake `winner`, nearest first; those that nowhere would, say so."""
    turns = [_turn(winner, other) for other in rivals]
    turns.sort(key=lambda turn: (abs(math.log(turn.bandwidth_factor or math.inf)), turn.challenger))
    return tuple(turns)


def _turn(winner: Modelled, other: Modelled) -> Turn:
    link_class = winner.link_class or other.link_class or "network"
    slowness = _crossing(winner.at, other.at)
    if slowness is None:
        reason = words.stays_behind(other.title, winner.title, FARTHEST)
        return Turn(
            challenger=other.title,
            link_class=link_class,
            bandwidth_factor=None,
            bandwidth_bytes_per_s=None,
            step_ns=None,
            sentence=f"{reason}.",
            reason=reason,
        )
    factor = 1 / slowness
    speed = factor * winner.link_bytes_per_s if winner.link_bytes_per_s else None
    return Turn(
        challenger=other.title,
        link_class=link_class,
        bandwidth_factor=factor,
        bandwidth_bytes_per_s=speed,
        step_ns=winner.at(slowness),
        sentence=words.overtakes(
            other.title,
            winner.title,
            link_class,
            factor,
            bytes_per_s=speed,
            batch_ns=winner.at(slowness),
            from_bytes=winner.is_known and other.is_known,
        ),
    )


def batch_turns(winner: Modelled, rivals: Sequence[Modelled], batch: int) -> tuple[BatchTurn, ...]:
    """Who would overtake `winner` at another batch than `batch`, nearest first."""
    turns = []
    for other in rivals:
        if not all(modelled.is_known and modelled.fixed_share is not None for modelled in (winner, other)):
            continue
        factor = _crossing(winner.at_batch, other.at_batch)
        if factor is None or round(factor * batch) in (0, batch):
            continue
        at = round(factor * batch)
        turns.append(
            BatchTurn(
                challenger=other.title,
                batch_factor=factor,
                batch=at,
                step_ns=winner.at_batch(factor),
                sentence=words.overtakes_at_batch(other.title, winner.title, at, batch),
            )
        )
    return tuple(sorted(turns, key=lambda turn: (abs(math.log(turn.batch_factor)), turn.challenger)))


def _crossing(winner: Callable[[float], float], other: Callable[[float], float]) -> float | None:
    """The factor nearest to 1 (as a ratio) at which `other` is no slower any more."""
    grid = np.geomspace(1 / FARTHEST, FARTHEST, 401)
    grid[200] = 1.0
    if other(1.0) <= winner(1.0):
        return None
    behind = [float(value) for value in grid if other(float(value)) <= winner(float(value))]
    if not behind:
        return None
    far = min(behind, key=lambda value: abs(math.log(value)))
    near = 1.0
    for _ in range(60):
        middle = math.sqrt(near * far)
        near, far = (near, middle) if other(middle) <= winner(middle) else (middle, far)
    return far
