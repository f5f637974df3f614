"""Modifiers that squeeze gradients, by name; and the others, which are no codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from perfscope.runners.compression.casts import CastExchange
from perfscope.runners.compression.int8 import Int8Exchange
from perfscope.runners.compression.onebit import OneBitExchange
from perfscope.runners.compression.powersgd import PowerSgdExchange
from perfscope.runners.compression.sparse import MsTopKExchange, TopKExchange
from perfscope.runners.config import BenchConfig, BenchError, Modifier
from perfscope.runners.exchange import DenseExchange, Exchange
from perfscope.vocabulary.taxonomy import CompressionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """One codec.

    Attributes:
        name: of the modifier.
        kind: what it makes of a gradient.
        summary, volume, criterion, source: for docs/schemes.md: what it does, what one exchange of n elements
            of e bytes among P ranks sends, what is held to be true of it, where it comes from.
        make: the exchange, from the modifier's number (`default` if none was given) and the run's seed.
        default: the number, None for a codec that takes none.
        number: what the number means, for reading.
        allowed: whether a number is one; `range` says it in words.
    """

    name: str
    kind: CompressionKind
    summary: str
    volume: str
    criterion: str
    source: str
    make: Callable[[float, int], Exchange]
    default: float | None = None
    number: str = ""
    range: str = ""
    allowed: Callable[[float], bool] = lambda value: True


_FEEDBACK = (
    "Error feedback: the sum of all means applied, plus the mean of what the ranks still keep, is the sum of "
    "the true means (to rounding; 1e-12 in float64)."
)
_SHARE = "the share of elements that is sent"

COMPRESSIONS: tuple[Compression, ...] = (
    Compression(
        name="fp16",
        kind=CompressionKind.CAST,
        summary="Gradients are divided by P, rounded to IEEE half precision and summed there.",
        volume="all_reduce of 2 n",
        criterion=(
            "Each element is off by at most 1.01 P 2^-11 times the mean of the ranks' magnitudes, "
            "plus P 2^-25, which the smallest halves lose."
        ),
        source="as torch's fp16_compress_hook, but divided before rounding",
        make=lambda value, seed: CastExchange(torch.float16),
    ),
    Compression(
        name="bf16",
        kind=CompressionKind.CAST,
        summary="Gradients are divided by P, rounded to bfloat16 and summed there.",
        volume="all_reduce of 2 n",
        criterion="Each element is off by at most 1.01 P 2^-8 times the mean of the ranks' magnitudes.",
        source="as torch's bf16_compress_hook, which refuses CPUs",
        make=lambda value, seed: CastExchange(torch.bfloat16),
    ),
    Compression(
        name="int8",
        kind=CompressionKind.QUANTIZED,
        summary="Eight bits per element and one scale per 1024 of them; what rounding loses is sent later.",
        volume="all_gather of P (n + e ceil(n / 1024))",
        criterion=f"A rank's message is off by at most half a scale per element. {_FEEDBACK}",
        source="MLSL's quantization with residual (intel/MLSL, quant.c); a scale, no common exponent",
        make=lambda value, seed: Int8Exchange(),
    ),
    Compression(
        name="onebit",
        kind=CompressionKind.QUANTIZED,
        summary="One bit per element and two values per 1024 of them; what rounding loses is sent later.",
        volume="all_gather of P (ceil(n / 8) + 2 e ceil(n / 1024))",
        criterion=(
            "In each block, what is kept back of the elements from 0 on adds up to 0, and so does what is "
            f"kept back of the others. {_FEEDBACK}"
        ),
        source="Seide et al., Interspeech 2014; blocks of 1024, not columns",
        make=lambda value, seed: OneBitExchange(),
    ),
    Compression(
        name="topk",
        kind=CompressionKind.SPARSE,
        summary="Only the k = ceil(r n) elements of largest magnitude are sent; the rest is sent later.",
        volume="all_gather of P k (e + 4)",
        criterion=f"Exactly k elements per rank, none smaller than one that is kept back. {_FEEDBACK}",
        source="Aji, Heafield, EMNLP 2017; Stich, Cordonnier, Jaggi, NeurIPS 2018",
        make=lambda value, seed: TopKExchange(value),
        default=0.01,
        number=_SHARE,
        range="above 0 and at most 1",
        allowed=lambda value: 0 < value <= 1,
    ),
    Compression(
        name="mstopk",
        kind=CompressionKind.SPARSE,
        summary="As topk, but the threshold is found by halving an interval 25 times instead of by sorting.",
        volume="all_gather of P k (e + 4)",
        criterion=(
            "Exactly k elements per rank; every element at or above the upper threshold is among them, none "
            f"below the lower one. {_FEEDBACK}"
        ),
        source="Shi et al., MLSys 2021, arXiv 2010.10458",
        make=MsTopKExchange,
        default=0.01,
        number=_SHARE,
        range="above 0 and at most 1",
        allowed=lambda value: 0 < value <= 1,
    ),
    Compression(
        name="powersgd",
        kind=CompressionKind.LOW_RANK,
        summary=(
            "The gradient, as a matrix of R rows and C columns, goes as two factors of r columns; what they "
            "miss is sent later."
        ),
        volume="all_reduce of r R e and r C e, R = ceil(sqrt n), C = ceil(n / R); of n e if r (R + C) >= n",
        criterion=f"Exact in the first step if the mean gradient has rank r or less. {_FEEDBACK}",
        source="Vogels, Karimireddy, Jaggi, NeurIPS 2019, arXiv 1905.13727",
        make=lambda value, seed: PowerSgdExchange(int(value), seed),
        default=2,
        number="the rank of the factors",
        range="a whole number, at least 1",
        allowed=lambda value: value >= 1 and float(value).is_integer(),
    ),
)

# Modifiers that change when something is sent, not what.
OTHER_MODIFIERS: tuple[tuple[str, str], ...] = (
    ("prio", "What the next forward pass needs first is exchanged first."),
    (
        "overlap",
        "A hybrid's gradients are averaged layer by layer during the backward pass, not packed after it.",
    ),
)


def kinds_of(names: Iterable[str]) -> tuple[CompressionKind, ...]:
    """Kinds of the codecs among these modifiers, each once."""
    wanted = set(names)
    return tuple(dict.fromkeys(codec.kind for codec in COMPRESSIONS if codec.name in wanted))


def find_compression(name: str) -> Compression | None:
    """The codec of that name; None if there is none."""
    return next((compression for compression in COMPRESSIONS if compression.name == name), None)


def check_modifier(modifier: Modifier) -> None:
    """Refuses what is unknown or has a wrong number.

    Raises:
        BenchError: with what would be right.
    """
    codec = find_compression(modifier.name)
    other_names = [name for name, _ in OTHER_MODIFIERS]
    if codec is None and modifier.name not in other_names:
        names = [*(compression.name for compression in COMPRESSIONS), *other_names]
        near = get_close_matches(modifier.name, names, n=1, cutoff=0.5)
        hint = (
            f"did you mean +{near[0]}?"
            if near
            else f"there are {', '.join('+' + modifier_name for modifier_name in names)}"
        )
        raise BenchError(f"there is no modifier +{modifier.name}; {hint}")
    if modifier.value is None:
        return
    if codec is None or codec.default is None:
        raise BenchError(f"+{modifier.name} takes no number; write +{modifier.name} alone")
    if not codec.allowed(modifier.value):
        raise BenchError(
            f"+{modifier}: {codec.number} must be {codec.range}; write +{codec.name}({codec.default:g})"
        )


def check_modifiers(modifiers: Iterable[Modifier]) -> Compression | None:
    """Checks each and that at most one is a codec, which is returned.

    Raises:
        BenchError: as check_modifier, or there are two codecs.
    """
    codec_found: Compression | None = None
    for modifier in modifiers:
        check_modifier(modifier)
        codec = find_compression(modifier.name)
        if codec and codec_found:
            raise BenchError(
                f"+{codec_found.name} and +{codec.name} cannot both squeeze the same gradients; take one"
            )
        codec_found = codec or codec_found
    return codec_found


def make_exchange(config: BenchConfig) -> Exchange:
    """The exchange that the run's modifiers ask for; modifiers that are none (+prio) are passed over.

    Raises:
        BenchError: as check_modifiers.
    """
    codec = check_modifiers(config.modifiers)
    if codec is None:
        return DenseExchange()
    given = config.modifier(codec.name)
    value = given.value if given and given.value is not None else codec.default
    return codec.make(value or 0.0, config.seed)
