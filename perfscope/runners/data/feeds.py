"""Which synthetic samples a kind of model is trained on."""

from __future__ import annotations

import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.clicks import SyntheticClicks
from perfscope.runners.data.synthetic import (
    HELD_OUT,
    TRAINING,
    Synthetic,
    SyntheticFeed,
    SyntheticTables,
    SyntheticTokens,
)
from perfscope.runners.data.volumes import SyntheticVolumes
from perfscope.runners.inputs import InputKind
from perfscope.runners.schemes.base import Batch

_FEEDS: dict[InputKind, type[Synthetic]] = {
    InputKind.IMAGE: SyntheticFeed,
    InputKind.TOKENS: SyntheticTokens,
    InputKind.TABLE: SyntheticTables,
    InputKind.CLICKS: SyntheticClicks,
    InputKind.VOLUME: SyntheticVolumes,
}


def synthetic_feed(
    config: BenchConfig, device: torch.device, kind: InputKind, stream: int = TRAINING
) -> Synthetic:
    """Training samples of a kind."""
    return _FEEDS[kind](config, device, stream)


def synthetic_held_out(config: BenchConfig, device: torch.device, num: int, kind: InputKind) -> Batch:
    """`num` samples of the same classes, or the same language, with noise that training never sees."""
    return synthetic_feed(config, device, kind, HELD_OUT).samples(0, num, 0, num)
