"""`perfscope plan`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.errors import UsageError


@click.command("plan", context_settings=HELP)
@click.option("--model", required=True, help="Model of `perfscope bench list --models`.")
@click.option(
    "--cluster",
    required=True,
    metavar="HOSTSxRANKS[@RATE[,LATENCY]]",
    help="The machine: 1x8, 2x4@10gbit, 4x8@100gbit,2us ...",
)
@click.option("--device-memory", metavar="SIZE", help="Limit of each rank: 80GB, 16GiB.  [default: none]")
@click.option("--batch", metavar="N,N...", help="Samples per step.  [default: 1, 2, 4 ... 64 per rank]")
@click.option(
    "--dtype",
    metavar="NAME,NAME...",
    default="float32",
    show_default=True,
    help="float32, float64, bfloat16, float16.",
)
@click.option("--input", "input_shape", metavar="SHAPE", help="3x224x224, or tokens.  [default: the model's]")
@click.option("--classes", type=click.IntRange(2), metavar="N", help="Classes.  [default: the model's]")
@click.option(
    "--optimizer", default="sgd", show_default=True, metavar="NAME", help="As of `perfscope bench run`."
)
@click.option(
    "--momentum", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="MU", help="Of sgd."
)
@click.option(
    "--flops",
    metavar="RATE",
    help="FLOP/s of a rank: 60T, or float32=60T,bfloat16=700T.  [default: this host's measured ceilings]",
)
@click.option(
    "--calibrate/--no-calibrate",
    default=True,
    help="Train the model here for some seconds, to predict steps; not with --flops.  [default: calibrate]",
)
@click.option("--memory-bandwidth", metavar="RATE", help="Of a rank: 3.3TB/s.  [default: as --flops]")
@click.option(
    "--network",
    metavar="NAME|LAT,BW",
    help="Links between hosts: edr, hdr ..., or 2us,100Gbit.  [default: the rate in --cluster]",
)
@click.option(
    "--inside", metavar="NAME|LAT,BW", help="Links inside a host: 3us,300GB/s.  [default: 10us,4GB/s]"
)
@click.option(
    "--overlap",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Communication of DDP and FSDP that the backward pass hides.",
)
@click.option(
    "--price-per-hour",
    type=click.FloatRange(0, min_open=True),
    metavar="P",
    help="Of one rank; ranks the costs, and considers fewer ranks, too.",
)
@click.option("--top", type=click.IntRange(1, 50), default=5, show_default=True, metavar="K", help="Rows.")
@click.option(
    "--verify",
    type=click.IntRange(0, 20),
    default=0,
    metavar="K",
    help="Train the first K for a few steps on this machine, and compare.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with all ways, filters and the Pareto front: plan.html, or plan.pdf.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(
    model: str, cluster: str, as_json: bool, output: Path | None, top: int, verify: int, **asked: Any
) -> None:
    """Rank ways to train a model on a machine by the time of their steps, under a limit of memory.

    Every mesh of the axes dp, fsdp, tp, sp, pp, cp and ep is tried by its scheme of `perfscope bench`, with
    each batch, precision, number of microbatches, schedule of a pipeline and some sizes of DDP's buckets.
    serial and DDP are tried with activation checkpointing, too. Memory (weights, gradients, optimizer,
    activations, buffers) and operators come from one step on tensors without values, communication from the
    schemes' own formulas. The output ends with everything that was assumed. Times are predicted
    from a short training of the model on this machine; with --flops they are lower bounds instead, and real
    steps take longer, in some ways much longer.

    \b
    Examples:
      perfscope plan --model gpt-micro --cluster 1x2 --batch 16 -o plan.html
      perfscope plan --model gpt-micro --cluster 2x2@1gbit --batch 16 --verify 3
      perfscope plan --model gpt2-124m --cluster 1x8 --device-memory 80GB --flops 60T
    """
    from perfscope.cli.bench.options import require_torch

    html, pdf = _page_of(output)
    require_torch()
    from perfscope.cli.plan.planning import make_plan
    from perfscope.cli.report import print_json, write_files

    plan = make_plan(model, cluster, top=top, verify=verify, asked=asked)
    if as_json:
        print_json(plan.report.document)
    else:
        print_result(plan.text)
    write_files(plan.report, html, pdf, stem="plan")


def _page_of(output: Path | None) -> tuple[Path | None, Path | None]:
    """The HTML or the PDF file that is asked for. Raises UsageError."""
    if output is None:
        return None, None
    if output.suffix not in (".html", ".pdf"):
        raise UsageError(f"-o {output}: name a file that ends in .html or .pdf, such as plan.html")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no directory {output.parent}; make it, or name another one")
    return (output, None) if output.suffix == ".html" else (None, output)
