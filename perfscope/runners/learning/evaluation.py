"""A model on the whole held-out set."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

import torch
from torch import nn

from perfscope.runners.data.registry import held_out
from perfscope.runners.job import Job
from perfscope.runners.learning.targets import ACCURACY, AUC, LOSS, PERPLEXITY, TOP5
from perfscope.runners.schemes.base import Batch
from perfscope.runners.schemes.local import cross_entropy

_AT_ONCE = 256  # samples
_SMALL = 1 << 25  # elements of all activations, of an evaluation that needs no thought
_LARGEST_LOG = 700.0  # exp() of more overflows


class HeldOutFigures(NamedTuple):
    """Means over all targets: of a sequence each token is one."""

    loss: float  # cross entropy, nats
    top1: float
    top5: float | None  # None: five classes or fewer
    auc: float | None = None  # None: not two classes, or targets of one only

    def by_metric(self) -> dict[str, float | None]:
        """By the names of targets.METRICS."""
        perplexity = exp(min(self.loss, _LARGEST_LOG))
        return {
            ACCURACY: self.top1,
            TOP5: self.top5,
            AUC: self.auc,
            LOSS: self.loss,
            PERPLEXITY: perplexity,
        }


def samples_at_once(job: Job) -> int:
    """Samples that an evaluation takes at once: few enough that the training's passes need more memory.

    As many as a rank's passes of training take, or more where these are small anyway.
    """
    of_training = max(job.group_batch // max(job.config.accumulate, 1), 1)
    return max(of_training, min(_AT_ONCE, _SMALL // max(job.shape.activations, 1)))


def mean_loss(model: nn.Module, samples: Batch, at_once: int) -> float:
    """Mean cross entropy of the model on samples, in evaluation mode, `at_once` of them at a time."""
    model.eval()
    total, num = 0.0, len(samples.inputs)
    with torch.no_grad():
        for first in range(0, num, at_once):
            inputs, targets = (
                samples.inputs[first : first + at_once],
                samples.targets[first : first + at_once],
            )
            total += float(cross_entropy(model(inputs), targets)) * len(inputs)
    return total / num


class HeldOutSet:
    """All samples that are kept from training, in host memory order, on one rank's device."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._samples = held_out(job.config, device, None)
        self._at_once = samples_at_once(job)
        self.num = len(self._samples.inputs)

    def evaluate(self, model: nn.Module) -> HeldOutFigures:
        """The model in evaluation mode, without gradients, some samples at a time."""
        inputs, targets = self._samples.inputs, self._samples.targets
        loss, right, among5, total = 0.0, 0, 0, 0
        margins: list[torch.Tensor] = []  # of the second of two classes
        model.eval()
        with torch.no_grad():
            for first in range(0, self.num, self._at_once):
                part = Batch(inputs[first : first + self._at_once], targets[first : first + self._at_once])
                outputs = model(part.inputs)
                scores, wanted = outputs.flatten(0, -2), part.targets.flatten()
                loss += float(cross_entropy(outputs, part.targets)) * len(wanted)
                best = scores.topk(min(5, scores.shape[-1])).indices
                hits = best == wanted[:, None]
                right += int(hits[:, 0].sum())
                among5 += int(hits.sum())
                total += len(wanted)
                if scores.shape[-1] == 2:
                    margins.append(scores[:, 1] - scores[:, 0])
        has_top5 = scores.shape[-1] > 5
        auc = area_under_curve(torch.cat(margins), targets.flatten() == 1) if margins else None
        return HeldOutFigures(loss / total, right / total, among5 / total if has_top5 else None, auc)


def area_under_curve(scores: torch.Tensor, positive: torch.Tensor) -> float | None:
    """Area under the ROC curve: the share of pairs of a positive and a negative in the right order.

    Args:
        scores: (n,).
        positive: (n,) bool.

    Returns:
        Pairs of equal scores count half; None where all or none are positive.
    """
    num_positive = int(positive.sum())
    num_pairs = num_positive * (len(positive) - num_positive)
    if not num_pairs:
        return None
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = counts.double().cumsum(0) - (counts.double() - 1) / 2  # mean rank of equal scores, from 1
    over = float(ranks[place][positive].sum()) - num_positive * (num_positive + 1) / 2
    return over / num_pairs
