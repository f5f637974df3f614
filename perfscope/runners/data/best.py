"""The best accuracy and loss that synthetic samples allow, as they follow from how they are made."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import torch

_MOST_COMPARED = 4096  # classes: each pair of centers is compared
OVERLAP = 1e-3  # share of samples whose class is ambiguous, at most, for the best to be known


@dataclass(frozen=True, slots=True)
class Best:
    """Of a model that knows how the samples are made; expected values.

    Attributes:
        accuracy: share of targets that it predicts.
        loss: mean cross entropy, nats: the entropy of a target given its input.
        auc: area under the ROC curve, of two classes; None: not known.
    """

    accuracy: float
    loss: float
    auc: float | None = None


def best_with_noise(num_classes: int, noise: float) -> Best:
    """Targets follow from the input, but for a share `noise` that is drawn uniformly from all classes.

    The right class has probability p = 1 - noise + noise / K, each other one noise / K.
    """
    other = noise / num_classes
    right = 1 - noise + other
    entropy = -right * log(right) - (num_classes - 1) * (other * log(other) if other else 0.0)
    return Best(right, entropy)


def best_of_clicks(probabilities: torch.Tensor) -> Best:
    """Of clicks whose probability (n,), float64, is one of n equally frequent values."""
    p, q = probabilities, 1 - probabilities
    wins = (p[:, None] > p).double() + (p[:, None] == p).double() / 2
    entropy = -(torch.special.xlogy(p, p) + torch.special.xlogy(q, q)).mean()
    auc = (p[:, None] * q * wins).sum() / (p.sum() * q.sum())
    return Best(float(torch.maximum(p, q).mean()), float(entropy), float(auc))


def best_of_classes(centers: torch.Tensor, deviation: float, noise: float) -> Best | None:
    """Of samples that are a center (K, n) plus independent noise; None where classes overlap too much.

    The nearest center is wrong for a share of at most (K - 1) exp(-d^2 / (8 deviation^2)), d the smallest
    distance of two centers (uniform noise is sub-Gaussian with its own variance; union bound). Up to OVERLAP
    that is neglected.
    """
    num = len(centers)
    if num > _MOST_COMPARED:
        return None
    apart = torch.pdist(centers.double()).min().item()
    wrong = (num - 1) * exp(-(apart**2) / (8 * deviation**2))
    return best_with_noise(num, noise) if wrong <= OVERLAP else None
