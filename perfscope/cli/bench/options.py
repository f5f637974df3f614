"""Options that say what a bench run trains, and the planned job that follows from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfscope.cli.lazy_group import with_options
from perfscope.errors import PerfscopeError, UsageError
from perfscope.runners.config import (
    BACKENDS,
    BINDINGS,
    COMPILE_MODES,
    CP_ATTENTIONS,
    DEVICES,
    DTYPES,
    LR_RULES,
    OPTIMIZERS,
    PIPELINES,
    SCHEDULES,
)

if TYPE_CHECKING:
    from perfscope.runners.cluster.spec import ClusterSpec
    from perfscope.runners.config import BenchConfig
    from perfscope.runners.job import Job

_F = TypeVar("_F", bound=Callable[..., Any])


def _option(name: str, text: str, **how: Any) -> Any:
    return click.option(f"--{name}", help=text, **how)


_TRAINING = (
    _option("model", "Model, see `perfscope bench list`.  [default: smallcnn]", metavar="NAME"),
    _option(
        "mesh",
        "Parts of the mesh along dp, fsdp, tp, pp ...; their product is P.  [default: the scheme's]",
        metavar="AXIS=N,...",
    ),
    _option(
        "ranks",
        "Processes.  [default: the mesh's size, else the cluster's, else 1 for serial, else 2]",
        type=int,
        metavar="P",
    ),
    _option("batch", "Samples in a step, over all ranks.  [default: 32]", type=int, metavar="B"),
    _option("steps", "Updates of the model.  [default: 20]", type=int, metavar="N"),
    click.option(
        "--modifier",
        "modifiers",
        multiple=True,
        metavar="NAME[(R)]",
        help="What gradients pass through: fp16, 'topk(0.01)' (quote it) ...; repeatable, or SCHEME+fp16.",
    ),
    _option(
        "input", "Size of an image; number of tokens or features.  [default: 3x32x32; 64]", metavar="SIZE"
    ),
    _option(
        "classes", "Classes of the samples, or size of the vocabulary.  [default: 16]", type=int, metavar="K"
    ),
    _option("lr", "Learning rate.  [default: the model's]", type=float, metavar="ETA"),
    _option("lr-rule", "How it follows the effective batch.  [default: none]", type=click.Choice(LR_RULES)),
    _option("base-batch", "Batch that --lr is meant for.  [default: --batch]", type=int, metavar="B"),
    _option("momentum", "Momentum.  [default: 0]", type=float, metavar="MU"),
    _option(
        "optimizer",
        "nesterov needs --momentum; default --lr of adamw is 0.001, lars 10, lamb 0.01.  [default: sgd]",
        type=click.Choice(OPTIMIZERS),
    ),
    _option(
        "schedule",
        "How the learning rate falls until --steps; step: a tenth at 1/2 and 3/4.  [default: constant]",
        type=click.Choice(SCHEDULES),
    ),
    _option("warmup", "Steps in which the rate grows to --lr.  [default: 0]", type=int, metavar="N"),
    _option("weight-decay", "Of the optimizer.  [default: 0]", type=float, metavar="L"),
    _option("clip-norm", "Largest norm of a gradient.  [default: no limit]", type=float, metavar="G"),
    _option(
        "dtype",
        "Of weights and samples; bfloat16 and float16: autocast on float32 weights.  [default: float32]",
        type=click.Choice(DTYPES),
    ),
    _option(
        "accumulate", "Micro-batches of a step, one after the other.  [default: 1]", type=int, metavar="N"
    ),
    _option(
        "activation-checkpointing",
        "Keep the inputs of blocks only; compute the rest again in the backward pass.",
        is_flag=True,
        default=None,
    ),
    _option(
        "compile",
        "torch.compile each block before the steps; aot_eager generates no code.  [default: none]",
        type=click.Choice(COMPILE_MODES),
    ),
    _option("seed", "Of weights and samples.  [default: 0]", type=int, metavar="N"),
    _option("data", "`synthetic`, or where images, tokens or clicks are.", metavar="WHERE"),
    _option(
        "label-noise",
        "Share of synthetic targets drawn at random; bounds the accuracy.  [default: 0; of tokens 0.2]",
        type=float,
        metavar="R",
    ),
    _option(
        "workers",
        "Threads of each rank that make batches ahead, 0 = none.  [default: 1 for --data, 0 for synthetic]",
        type=int,
        metavar="N",
    ),
    _option(
        "process-cache-mb",
        "MiB of decoded samples that each rank keeps, for --data of images.  [default: 64]",
        type=float,
        metavar="MIB",
    ),
    _option(
        "node-cache-mb",
        "MiB of them that the ranks of a host share.  [default: 1024, at most half of /dev/shm]",
        type=float,
        metavar="MIB",
    ),
    _option(
        "evaluate-every",
        "Evaluate on the whole held-out set every N steps, outside their time.",
        type=int,
        metavar="N",
    ),
    _option(
        "target",
        "End the run when held-out accuracy, top5, auc, loss or perplexity is as good: accuracy=0.9.",
        metavar="METRIC=VALUE",
    ),
    _option("held-out", "Synthetic samples kept from training.  [default: 2048]", type=int, metavar="N"),
    _option("noise-every", "Measure the gradient noise scale every N steps.", type=int, metavar="N"),
    _option("price-per-hour", "Of all machines together, for the cost.", type=float, metavar="PRICE"),
    _option("dropout", "Probability.  [default: 0]", type=float, metavar="P"),
    _option("period", "Steps between exchanges, for schemes that have a period.", type=int, metavar="TAU"),
    _option("staleness", "Steps that a worker of ps.ssp may be ahead.  [default: 1]", type=int, metavar="S"),
    _option("servers", "Ranks that share the weights of ps.* schemes.  [default: 1]", type=int, metavar="K"),
    _option("moving-rate", "Moving rate a = eta * rho of elastic averaging.", type=float, metavar="A"),
    _option(
        "pipeline",
        "Schedule of a mesh with pp, without SCHEME.  [default: 1f1b]",
        type=click.Choice(PIPELINES),
    ),
    _option(
        "cp-attention",
        "How attention of a mesh with cp, without SCHEME, sees other ranks' tokens.  [default: gather]",
        type=click.Choice(CP_ATTENTIONS),
    ),
    _option("microbatches", "Microbatches of a pipeline.", type=int, metavar="N"),
    _option(
        "bucket-mb", "MiB that dp.ddp sends at once.  [default: 1 first, then 25]", type=float, metavar="MIB"
    ),
    _option(
        "chunk-kb",
        "Largest chunk of +prio.  [default: where latency is a tenth of the link's time]",
        type=int,
        metavar="KIB",
    ),
)
_FRAMEWORK = (
    _option(
        "framework",
        "torch, tensorflow, keras-tensorflow, keras-jax, keras-torch, jax, mxnet or horovod.",
        metavar="NAME",
    ),
    _option(
        "python",
        "Python that has the framework.  [default: this one, else an environment's that has it]",
        metavar="PATH",
    ),
    _option("env", "Environment of `perfscope bench env` that has it: a name, or a path.", metavar="NAME"),
)
_MACHINE = (
    _option("device", "[default: auto]", type=click.Choice(DEVICES)),
    _option("backend", "What carries the bytes.  [default: auto]", type=click.Choice(BACKENDS)),
    _option("bind", "Bind ranks to NUMA domains or cores.  [default: none]", type=click.Choice(BINDINGS)),
    _option(
        "threads",
        "Threads per rank.  [default: OMP_NUM_THREADS, else cores / ranks; a bound rank: its cores]",
        type=int,
        metavar="N",
    ),
    _option("timeout", "How long a rank waits for another.  [default: 60]", type=float, metavar="SECONDS"),
    _option(
        "cluster",
        "Emulate HOSTSxRANKS joined at RATE on this machine, e.g. 2x2@1gbit. Compute is shared.",
        metavar="SPEC",
    ),
    click.option("--save-weights", metavar="FILE", help="Keep the trained weights (torch.save)."),
)


def training_options(function: _F) -> _F:
    """What is trained: --model, --mesh, --batch ..."""
    return with_options(_TRAINING, function)


def framework_options(function: _F) -> _F:
    """With what, instead of a scheme: --framework, --python, --env."""
    return with_options(_FRAMEWORK, function)


def machine_options(function: _F) -> _F:
    """Where: --device, --bind, --cluster ..."""
    return with_options(_MACHINE, function)


def require_torch() -> None:
    """Raises PerfscopeError where torch is not installed."""
    if find_spec("torch") is None:
        raise PerfscopeError('the bench runners need torch: pip install "perfscope-hpc[torch]"')


def refuse_scheme(
    scheme: str | None, modifiers: tuple[str, ...], cluster: str | None, seeds: int | None = None
) -> None:
    """Raises UsageError where --framework is given with what belongs to schemes."""
    for given, options_text in (
        (scheme, f"the scheme {scheme}"),
        (modifiers, "--modifier"),
        (cluster, "--cluster"),
        (seeds, "--seeds"),
    ):
        if given:
            raise UsageError(
                f"--framework trains data parallel in the framework's own way; leave out {options_text}"
            )


def planned(
    scheme: str, settings: Mapping[str, Any], modifiers: tuple[str, ...], cluster: str | None
) -> tuple[Job, ClusterSpec | None]:
    """The job that the options ask for, checked, and its cluster.

    Raises:
        BenchError: it cannot be; the line says why.
        PerfscopeError: torch is not installed.
    """
    require_torch()
    from perfscope.runners.models.registry import find_model
    from perfscope.runners.planning import plan
    from perfscope.runners.sweep.settings import ClusterSize, config_of

    spec = None
    size = None
    if cluster is not None:
        from perfscope.runners.cluster.spec import parse_cluster

        spec = parse_cluster(cluster)
        size = ClusterSize(spec.num_hosts, spec.ranks_per_host)
    config = config_of(
        scheme,
        settings,
        modifiers=modifiers,
        cluster=size,
        default_learning_rate=lambda model: find_model(model).learning_rate,
        default_input=lambda model: find_model(model).default_input,
        default_classes=lambda model: find_model(model).default_classes,
    )
    return plan(with_threads(config, os.environ)), spec


def with_threads(config: BenchConfig, environment: Mapping[str, str]) -> BenchConfig:
    """The same run with its threads per rank settled, so that a run tells them.

    Ranks that are bound take the cores they are bound to, ranks of an outer launcher what their node has.
    """
    from perfscope.runners.starting.outer_launcher import find_outer

    if config.threads is not None or config.bind != "none" or find_outer(environment) is not None:
        return config
    return replace(config, threads=default_threads(config.num_ranks, environment))


def default_threads(num_ranks: int, environment: Mapping[str, str]) -> int:
    """Threads of each of so many ranks on this machine, emulated hosts share it: at least 1."""
    given = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isdigit() and int(given) > 0:
        return int(given)
    return max(len(os.sched_getaffinity(0)) // num_ranks, 1)
