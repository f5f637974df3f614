"""What a codec keeps between steps, by buffer; and the pending exchange that all of them hand out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import torch

from perfscope.runners.comm import Group
from perfscope.runners.exchange import PendingExchange


class Later(PendingExchange):
    """Its result is made by `finish` once `work` is done. Waiting again gives the same result."""

    def __init__(self, work: Any, finish: Callable[[], torch.Tensor]) -> None:
        self._work, self._finish = work, finish
        self._result: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        """See Pending."""
        if self._result is None:
            if self._work is not None:
                self._work.wait()
            self._result = self._finish()
            del self._work, self._finish  # their buffers are large
        return self._result


class Residuals:
    """Error feedback: what was not sent yet, by buffer and group, in the gradient's own precision."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, torch.Tensor] = {}

    def of(self, key: Hashable, group: Group, like: torch.Tensor) -> torch.Tensor:
        """The residual of a buffer, zeros in the first step. It is changed in place.

        Raises:
            ValueError: the buffer had another size or type before: two buffers go by one key.
        """
        kept = self._kept.setdefault((key, group.axis, group.ranks), torch.zeros_like(like))
        if kept.shape != like.shape or kept.dtype != like.dtype:
            raise ValueError(
                f"buffer {key!r} was {kept.numel()} x {kept.dtype} and is now {like.numel()} x {like.dtype}"
            )
        return kept

    def kept(self, key: Hashable, group: Group) -> torch.Tensor | None:
        """As `of`, for looking; None if there is none yet."""
        return self._kept.get((key, group.axis, group.ranks))


def draw_seed(seed: int, *names: object) -> int:
    """A seed that follows from the run's and from names, the same in every process and every run."""
    return Random(f"{seed}/{names!r}").getrandbits(62)
