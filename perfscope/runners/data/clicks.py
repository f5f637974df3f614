"""Clicks that can be learned: rows of dense features and categories, and the best AUC that they allow."""

from __future__ import annotations

from itertools import product
from math import sqrt

import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.best import Best, best_of_clicks
from perfscope.runners.data.seeds import mixed_seed
from perfscope.runners.data.synthetic import TRAINING, Synthetic
from perfscope.runners.models.registry import find_model
from perfscope.runners.schemes.base import Batch

_MOST_INFORMATIVE = 8  # categorical features that a click depends on
_SPREAD = 2.0  # standard deviation of the logit


class SyntheticClicks(Synthetic):
    """Rows whose click follows from signs that their categories and dense features stand for.

    Half of the categories of a table are for a click and half against it; which half is drawn from the seed.
    Of a pair of neighboring categories one is of each half, and pairs of low numbers are more frequent: pair
    floor(n u^3) of n, u uniform. The dense features have a sign, too: on which side of a plane they lie. The
    logit of a click is a sum of the signs of the first _MOST_INFORMATIVE tables and of the dense features,
    and of products of the signs of neighboring tables, which a model without interactions cannot learn. All
    signs are fair coins independent of each other, so that the best AUC, accuracy and loss follow from a sum
    over all patterns of signs. A table of one row, and the last row of an odd number, have no part in it.
    """

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = TRAINING) -> None:
        super().__init__(config, device, stream)
        self._dtype: torch.dtype = getattr(torch, config.weight_dtype)
        rows = torch.tensor(find_model(config.model).tables)
        self._pairs, self._num_dense = rows // 2, config.input_shape[0] - len(rows)
        informative = (self._pairs > 0).nonzero().flatten()[:_MOST_INFORMATIVE]
        generator = torch.Generator().manual_seed(mixed_seed(config.seed, 0, 0))
        self._flips = torch.randint(2, (len(rows),), generator=generator)
        self._plane = torch.rand(self._num_dense, generator=generator, dtype=torch.float64) - 0.5
        self._informative = informative
        self._noise = config.label_noise or 0.0

    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """See Synthetic."""
        draws, num_tables = self._draws(step), len(self._pairs)
        bits = torch.randint(2, (batch, num_tables), generator=draws)
        popular = torch.rand((batch, num_tables), generator=draws, dtype=torch.float64).pow_(3)
        dense = torch.rand((batch, self._num_dense), generator=draws).sub_(0.5).mul_(sqrt(12))
        chance = torch.rand(batch, generator=draws, dtype=torch.float64)
        pairs = (popular * self._pairs).long()
        categories = torch.where(self._pairs > 0, 2 * pairs + (bits ^ self._flips), 0)
        side = (dense.double() * self._plane).sum(1) > 0
        signs = 2 * torch.cat((bits[:, self._informative], side[:, None]), dim=1) - 1
        clicked = (chance < self._probability(signs.double())).long()
        own = slice(first, first + num)
        inputs = torch.cat((dense[own].to(self._dtype), categories[own].to(self._dtype)), dim=1)
        return Batch(inputs.to(self._device), clicked[own].to(self._device))

    @property
    def best(self) -> Best:
        """See Synthetic: over all patterns of signs, which are equally probable."""
        num = len(self._informative) + 1
        patterns = torch.tensor(list(product((-1, 1), repeat=num)), dtype=torch.float64)
        return best_of_clicks(self._probability(patterns))

    def _probability(self, signs: torch.Tensor) -> torch.Tensor:
        """Of a click (n,), given signs (n, k + 1); the last is that of the dense features."""
        products = signs[:, 0:-2:2] * signs[:, 1:-1:2]
        num = signs.shape[1] + products.shape[1]
        logits = (signs.sum(1) + products.sum(1)) * (_SPREAD / sqrt(num))
        return (1 - self._noise) * logits.sigmoid() + self._noise / 2
