"""Writes docs/schemes.md from the registries: `python -m perfscope.runners.catalogue.scheme_docs FILE`.

What stands between the two marks is written by hand, and kept.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.runners.catalogue.families import FAMILIES, family_of
from perfscope.runners.catalogue.scheme_words import scheme_facts
from perfscope.runners.compression.registry import COMPRESSIONS, OTHER_MODIFIERS
from perfscope.runners.config import BenchConfig, BenchError, Modifier
from perfscope.runners.identity import all_traffic, bytes_by_link, planned_places
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.models.catalogue import MODELS
from perfscope.runners.models.registry import find_model
from perfscope.runners.planning import describe_model, plan
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.registry import SCHEMES
from perfscope.units import format_si

BEGIN, END = "<!-- by hand: begin -->", "<!-- by hand: end -->"
_NUM_RANKS, _BATCH, _BATCH_OF_SERVERS, _CLASSES = 4, 256, 252, 1000
_NO_BYTES = "0"
_MULTIPLYING = {"conv": "conv", "conv3d": "conv", "linear": "linear"}
WIDTH = 100
_BEFORE_MARK = re.compile(r"(?<=\S) (?=[-+*#>|]|\d+[.)] )")

_HEAD = f"""# Parallel schemes

Generated from the registries by `make schemes-doc`; only the part between the marks is written by
hand.

`perfscope bench list` shows the same on the command line, and `perfscope bench run SCHEME` trains a
scheme.

Symbols: P ranks = D data (dp) x M tensor (tp) x S pipeline (pp) parts. B is the global batch size,
b = B/D the batch of a data part, e the bytes per element. A layer has |x| input and |y| output
elements per sample and |w| parameters; |W| is the number of all parameters. eta is the learning
rate, mu the momentum, tau the period, a = eta * rho the moving rate. The four axes are those of
Langer et al., TPDS 31(12), 2020, arXiv 2007.03970.

Bytes in the tables are predicted, not measured: what a rank sends in one step by the formulas of
bandwidth-optimal collectives, for AlexNet (61.1 M parameters, float32, 224 x 224) with B = {_BATCH} on
P = {_NUM_RANKS} ranks and the mesh shown. A scheme that takes only tokens has `transformer` on 64 tokens
instead, one that takes only clicks `dlrm-small`. gloo moves twice as much for a reduce-scatter;
`perfscope bench run --dry-run` shows both, per link class, for any run.
"""


def render(previous: str = "") -> str:
    """The whole document.

    Args:
        previous: the document as it is; its part between the marks is kept.
    """
    parts = [_HEAD, _kept(previous)]
    for family, title in FAMILIES.items():
        members = [scheme_class for scheme_class in SCHEMES if family_of(scheme_class.name) == family]
        if members:
            parts.append(_family(title, members))
    parts += [_modifiers(), _models()]
    return "\n".join(parts)


def predicted_bytes(config: BenchConfig) -> tuple[Job, float, float]:
    """(job, bytes of the busiest sender, bytes of all) per step.

    Raises:
        BenchError: the run cannot be.
    """
    job = plan(config)
    placements = planned_places(job)
    sent = [
        sum(bytes_by_link({rank: calls}, placements).values()) for rank, calls in all_traffic(job).items()
    ]
    return job, max(sent, default=0.0), sum(sent)


def main(arguments: Sequence[str]) -> int:
    """Rewrites the file named; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m perfscope.runners.catalogue.scheme_docs FILE", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    path.write_text(render(path.read_text(encoding="utf-8") if path.exists() else ""), encoding="utf-8")
    return 0


def _kept(previous: str) -> str:
    """The hand-written part with its marks; empty marks where there is none."""
    _, begin, remainder = previous.partition(BEGIN)
    inside, end, _ = remainder.partition(END)
    return f"{BEGIN}{inside if begin and end else chr(10)}{END}\n"


def _family(title: str, members: Sequence[type[Scheme]]) -> str:
    lines = [
        f"## {title}",
        "",
        "| scheme | mesh | B | busiest rank sends | all ranks send |",
        "|---|---|---:|---:|---:|",
    ]
    lines += [_predicted_row(scheme_class) for scheme_class in members]
    lines.append("")
    for scheme_class in members:
        lines += [
            f"### {scheme_class.name}",
            "",
            _wrapped(scheme_class.summary),
            "",
            *(_wrapped(f"- {name}: {text.strip()}", "  ") for name, text in scheme_facts(scheme_class)),
            "",
        ]
    return "\n".join(lines)


def _predicted_row(scheme: type[Scheme]) -> str:
    """B = 256, or 252 where it must divide by the three workers beside a server, too."""
    reason = ""
    for batch in (_BATCH, _BATCH_OF_SERVERS):
        try:
            job, most, total = predicted_bytes(_example(scheme, batch))
        except BenchError as error:
            reason = reason or str(error)
            continue
        return f"| `{scheme.name}` | {job.mesh} | {batch} | {_amount(most)} | {_amount(total)} |"
    return f"| `{scheme.name}` | | | not possible: {reason} | |"


def _example(scheme: type[Scheme], batch: int) -> BenchConfig:
    """AlexNet, but another model where a scheme takes only tokens or clicks."""
    config = _alexnet(scheme.name, batch)
    if InputKind.IMAGE in scheme.inputs:
        return config
    model = find_model("transformer" if InputKind.TOKENS in scheme.inputs else "dlrm-small")
    classes = model.default_classes or config.num_classes
    return replace(config, model=model.name, input_shape=model.classic_input, num_classes=classes)


def _alexnet(scheme: str, batch: int, modifiers: tuple[Modifier, ...] = ()) -> BenchConfig:
    return BenchConfig(
        scheme=scheme,
        modifiers=modifiers,
        model="alexnet",
        num_ranks=1 if scheme == "serial" else _NUM_RANKS,
        batch=batch,
        input_shape=(3, 224, 224),
        num_classes=_CLASSES,
    )


def _wrapped(text: str, indent: str = "") -> str:
    """Prose at the documentation's width; no line begins with a word that Markdown reads as a mark."""
    bound = _BEFORE_MARK.sub("\0", text)
    lines = textwrap.wrap(
        bound, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def _amount(num_bytes: float) -> str:
    return format_si(num_bytes, "B") if num_bytes else _NO_BYTES


def _count(number: int) -> str:
    return format_si(number, "").strip() if number >= 1000 else str(number)


def _modifiers() -> str:
    lines = [
        "## Modifiers",
        "",
        f"`dp.packed+NAME` on the same AlexNet, P = {_NUM_RANKS}; n elements are exchanged at once.",
        "",
        "| modifier | number | busiest rank sends | one exchange |",
        "|---|---|---:|---|",
    ]
    for compression in COMPRESSIONS:
        modifier = Modifier(compression.name, compression.default)
        try:
            amount = _amount(predicted_bytes(_alexnet("dp.packed", _BATCH, (modifier,)))[1])
        except BenchError as error:
            amount = f"not possible: {error}"
        number = (
            "none"
            if compression.default is None
            else f"{compression.number}, {compression.range}; {compression.default:g} without"
        )
        lines.append(f"| `+{compression.name}` | {number} | {amount} | {compression.volume} |")
    lines.append("")
    for compression in COMPRESSIONS:
        lines += [
            f"### +{compression.name}",
            "",
            _wrapped(compression.summary),
            "",
            _wrapped(f"- holds: {compression.criterion}", "  "),
            _wrapped(f"- source: {compression.source}", "  "),
            "",
        ]
    for name, text in OTHER_MODIFIERS:
        takers = ", ".join(
            f"`{scheme_class.name}`" for scheme_class in SCHEMES if name in scheme_class.modifiers
        )
        takers = _wrapped(f"- for: {takers or 'no scheme'}", "  ")
        lines += [f"### +{name}", "", _wrapped(text), "", takers, ""]
    return "\n".join(lines)


def _models() -> str:
    lines = [
        "## Models",
        "",
        "At the input and classes each was drawn for; any other input fits too. FLOP are of one forward",
        "pass of one sample. Inputs are the elements per sample that enter convolutions and fully connected",
        "layers, the first of them left out.",
        "",
        "| model | input | parameters | in convolutions | fully connected | FLOP | inputs |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for model_class in MODELS:
        config = BenchConfig(
            scheme="serial",
            model=model_class.name,
            input_shape=model_class.classic_input,
            num_classes=model_class.classic_classes,
            batch=_BATCH,
        )
        shape = describe_model(config)
        of_kind: Counter[str] = Counter()
        for layer in shape.layers:
            of_kind[_MULTIPLYING.get(layer.kind, "")] += layer.num_params
        inputs = sum(layer.in_size for layer in shape.layers[1:] if layer.kind in _MULTIPLYING)
        flops = shape.flops()
        size = "x".join(map(str, model_class.classic_input))
        cells = map(_count, (shape.num_params, of_kind["conv"], of_kind["linear"], flops, inputs))
        lines.append(f"| `{model_class.name}` | {size} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
