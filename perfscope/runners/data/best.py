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
    """

    accuracy: float
    loss: float


def best_with_noise(num_classes: int, noise: float) -> Best:
    """Targets follow from the input, but for a share `noise` that is drawn uniformly from all classes.

    The right class has probability p = 1 - noise + noise / K, each other one noise / K.
    """
    other = noise / num_classes
    right = 1 - noise + other
    entropy = -right * log(right) - (num_classes - 1) * (other * log(other) if other else 0.0)
    return Best(right, entropy)


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
