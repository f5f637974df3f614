"""What a bench run was asked for: one frozen value, passed to every rank as JSON. No torch here."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Literal, get_args

from msgspec import Meta

from perfscope.errors import UsageError
from perfscope.runners.learning.targets import AUC, TOP5, parse_target
from perfscope.runners.mesh import Mesh
from perfscope.settings import converted

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
LrRule = Literal["none", "linear", "sqrt"]
Binding = Literal["numa", "core", "none"]
Backend = Literal["auto", "gloo", "nccl", "mpi"]
OptimizerName = Literal["sgd", "nesterov", "adamw", "lars", "lamb"]
CompileMode = Literal["none", "default", "reduce-overhead", "max-autotune", "aot_eager"]
PipelineName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
CpAttention = Literal["gather", "ring", "all-to-all"]
Schedule = Literal["constant", "linear", "cosine", "step"]
DTYPES, DEVICES, LR_RULES, BINDINGS, BACKENDS = map(get_args, (Dtype, Device, LrRule, Binding, Backend))
OPTIMIZERS, SCHEDULES, PIPELINES, COMPILE_MODES, CP_ATTENTIONS = map(
    get_args, (OptimizerName, Schedule, PipelineName, CompileMode, CpAttention)
)
# Of optimizers with a scale of their own, without --lr; models state theirs for plain SGD.
LEARNING_RATES = {"adamw": 1e-3, "lars": 10.0, "lamb": 0.01}
LAYERWISE = ("lars", "lamb")  # need the norms of whole layers
DEFAULT_TIMEOUT_S = 60.0
_DEFAULT_EVALUATIONS = 20  # of a run that has a target and does not say how often
MAX_SIDE = 1 << 14  # of an input, and its channels
MAX_ELEMENTS = 1 << 34  # numbers of one step's samples
_MODIFIER = re.compile(r"([a-z0-9]+)(?:\(([^()]*)\))?")

# Ranges are wide enough for any run that could end, narrow enough that nothing further on overflows or never
# returns.
Count = Annotated[int, Meta(ge=1, le=10**9)]
Places = Annotated[int, Meta(ge=1, le=4096)]
Samples = Annotated[int, Meta(ge=1, le=MAX_ELEMENTS)]
Part = Annotated[float, Meta(ge=0, lt=1)]
SHAPE = "CHANNELSxHEIGHTxWIDTH such as 3x32x32, or one number"
# Fields that users know by another name: as the option of `bench run`, and the key of a sweep.
SPELLED = {
    "num_ranks": "ranks",
    "input_shape": "input",
    "num_classes": "classes",
    "learning_rate": "lr",
    "num_microbatches": "microbatches",
    "timeout_s": "timeout",
}


class BenchError(UsageError):
    """A bench run that cannot be: unknown name, bad mesh, unstable rate. The message is one line."""


class BatchError(BenchError):
    """A batch that the ranks cannot share equally.

    Attributes:
        fact: the message without the way out.
        usable: the next smaller batch that they can share, or the smallest.
    """

    def __init__(self, batch: int, parts: int, each: str, otherwise: str = "") -> None:
        self.fact = f"a batch of {batch} cannot be cut into {parts} equal parts, one per {each}"
        self.usable = batch // parts * parts or parts
        super().__init__(f"{self.fact}; use {self.usable}{otherwise}")


@dataclass(frozen=True, slots=True)
class Modifier:
    """`+topk(0.01)`: a name and, for some, a number."""

    name: str
    value: float | None = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}({self.value:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """One bench run.

    Attributes:
        scheme: canonical name, without modifiers.
        modifiers: in the order given.
        model: name in models.registry.
        num_ranks: P, processes of the job.
        mesh: parts along each axis; None = the scheme's default for num_ranks.
        batch: B, samples in one step over all ranks.
        steps: updates of the model; for schemes without a common step, updates made by each worker.
        input_shape: of one sample: (channels, height, width), (sequence length,) or (features,).
        num_classes: classes of the synthetic data (of tokens, the vocabulary), width of the last layer.
        learning_rate: eta at `base_batch`.
        lr_rule: how eta follows the effective batch: none, linear or sqrt of effective batch / base_batch.
        base_batch: batch that learning_rate is meant for; None = batch.
        momentum: mu, of sgd, nesterov and lars.
        optimizer: one of OPTIMIZERS.
        schedule: how eta changes over the steps, one of SCHEDULES; see schemes.update_rules.schedule_factor.
        warmup: steps in which eta first grows in equal parts to its value.
        weight_decay: of sgd and nesterov added to the gradient, of adamw decoupled (torch.optim); of lars and
            lamb part of the direction (schemes.layer_rules).
        clip_norm: largest norm of the gradient of an update; None = not limited.
        dtype: of weights and samples, one of DTYPES; bfloat16 and float16 are mixed precision: weights are
            float32, and torch.autocast chooses the operators that compute in 16 bits.
        accumulate: micro-batches that each rank's samples of a step are divided into.
        activation_checkpointing: blocks keep their inputs only; the rest is computed again when needed.
        compile: mode of torch.compile, the backend aot_eager, or none; see schemes.compilation.
        seed: of weights, samples and whatever a scheme draws.
        data: "synthetic", or the path of stored samples; see data.registry.
        label_noise: share of synthetic targets that are drawn uniformly from all classes; None = 0, of tokens
            TOKEN_NOISE.
        workers: threads of each rank that make batches ahead; 0 = none, the training's own thread makes them;
            None = one for stored data, none for synthetic.
        process_cache_mb, node_cache_mb: MiB of decoded samples that a rank keeps, and that the ranks of a
            host share; None = see data.sample_cache.
        held_out: synthetic samples that are kept from training; of stored data a tenth is.
        evaluate_every: steps from one evaluation on all of them to the next; None = as a target needs it.
        target: what ends the run where an evaluation reaches it; see learning.targets.
        noise_every: steps from one measurement of the gradient noise scale to the next; None = none.
        price_per_hour: of all machines of the run together, in any currency.
        period: tau; steps between two exchanges of periodic schemes; None = the scheme's own default.
        staleness: of ps.ssp: steps that a worker may be ahead of the slowest; None = the scheme's default.
        servers: ranks that share the weights of ps.* schemes, by bytes.
        moving_rate: a = eta * rho of elastic averaging; None = 0.9 / number of workers.
        pipeline: schedule of the scheme `mesh` where pp is above 1, one of PIPELINES.
        cp_attention: of the scheme `mesh` where cp is above 1, one of CP_ATTENTIONS.
        num_microbatches: of pipelines; None = the scheme's default.
        bucket_mb: MiB of gradients that DDP sends at once (its bucket_cap_mb); None = its default, 25, and 1
            for the first.
        chunk_kb: KiB of the largest chunk of +prio; None = as the link needs it, see schemes.chunks.
        chunk_from: what chunk_kb is from; "" = it was given, or is the default.
        dropout: probability; 0 so that schemes can be compared sample by sample.
        num_hosts: hosts that the ranks are spread over evenly, consecutive ranks together (`--cluster`).
        device, backend, bind: see DEVICES, BACKENDS, BINDINGS.
        threads: intra-op threads per rank; None = cores of the host / ranks on it, at least 1.
        timeout_s: how long a rank waits for another.
        save_weights: file that rank 0 writes the final weights to (torch.save of a state dict); None = none.
    """

    scheme: str
    modifiers: tuple[Modifier, ...] = ()
    model: str = "smallcnn"
    num_ranks: Places = 1
    mesh: Mesh | None = None
    batch: Samples = 32
    steps: Count = 20
    input_shape: Annotated[tuple[int, ...], Meta(description=SHAPE)] = (3, 32, 32)
    num_classes: Annotated[int, Meta(ge=2, le=10**6)] = 16  # with one there is nothing to learn
    learning_rate: Annotated[float, Meta(gt=0, le=10**6)] = 0.02
    lr_rule: LrRule = "none"
    base_batch: Samples | None = None
    momentum: Part = 0.0
    optimizer: OptimizerName = "sgd"
    schedule: Schedule = "constant"
    warmup: Annotated[int, Meta(ge=0, le=10**9)] = 0
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.0
    clip_norm: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    dtype: Dtype = "float32"
    accumulate: Count = 1
    activation_checkpointing: bool = False
    compile: CompileMode = "none"
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    data: str = "synthetic"
    label_noise: Part | None = None
    workers: Annotated[int, Meta(ge=0, le=256)] | None = None
    process_cache_mb: Annotated[float, Meta(ge=0, le=10**7)] | None = None
    node_cache_mb: Annotated[float, Meta(ge=0, le=10**7)] | None = None
    held_out: Samples = 2048
    evaluate_every: Count | None = None
    target: str | None = None
    noise_every: Count | None = None
    price_per_hour: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    period: Count | None = None
    moving_rate: Annotated[float, Meta(ge=-(10**9), le=10**9)] | None = None  # schemes know the real bounds
    staleness: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    servers: Places = 1
    pipeline: PipelineName = "1f1b"
    cp_attention: CpAttention = "gather"
    num_microbatches: Count | None = None
    bucket_mb: Annotated[float, Meta(gt=0, le=10**6)] | None = None
    chunk_kb: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    chunk_from: str = ""
    dropout: Part = 0.0
    num_hosts: Places = 1
    device: Device = "auto"
    backend: Backend = "auto"
    bind: Binding = "none"
    threads: Places | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = DEFAULT_TIMEOUT_S
    save_weights: str | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether operators compute in 16 bits on weights of 32."""
        return self.dtype in ("bfloat16", "float16")

    @property
    def weight_dtype(self) -> str:
        """Of weights, gradients and samples."""
        return "float32" if self.is_mixed else self.dtype

    @property
    def full_name(self) -> str:
        """The scheme with its modifiers: `dp.ddp+topk(0.01)`."""
        return "+".join((self.scheme, *map(str, self.modifiers)))

    def modifier(self, name: str) -> Modifier | None:
        """The modifier of that name, if it was given."""
        return next((modifier for modifier in self.modifiers if modifier.name == name), None)

    def to_json(self) -> str:
        """For `from_json`, on one line."""
        values = {**asdict(self), "mesh": self.mesh and self.mesh.axes}
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> BenchConfig:
        """The config that `to_json` wrote.

        Raises:
            BenchError: it is none.
        """
        what = "this is no configuration of a bench run"
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BenchError(f"{what}: {error}") from error
        return converted(values, cls, file=what, spelled=SPELLED, error=BenchError)


def evaluation_interval(config: BenchConfig, period: int = 1) -> int | None:
    """Steps from one evaluation to the next, by default a multiple of `period`; None: there is none."""
    if config.evaluate_every is not None:
        return config.evaluate_every
    if config.target is None:
        return None
    return -(-max(1, config.steps // _DEFAULT_EVALUATIONS) // period) * period


def parse_scheme(text: str) -> tuple[str, tuple[Modifier, ...]]:
    """`dp.ddp+topk(0.01)+prio` as name and modifiers; names are not looked up here.

    Raises:
        BenchError: it is not written like that, or a modifier comes twice.
    """
    name, *modifier_texts = text.strip().split("+")
    modifiers: list[Modifier] = []
    for word in modifier_texts:
        match = _MODIFIER.fullmatch(word.strip())
        if not match:
            raise BenchError(f"{word!r} in {text!r} is no modifier; write +fp16 or +topk(0.01)")
        value = None
        if match[2] is not None:
            try:
                value = float(match[2].rstrip("%")) / (100 if match[2].endswith("%") else 1)
            except ValueError:
                raise BenchError(f"+{word}: {match[2]!r} is not a number") from None
        if any(modifier.name == match[1] for modifier in modifiers):
            raise BenchError(f"+{match[1]} is given twice in {text!r}")
        modifiers.append(Modifier(match[1], value))
    if not name:
        raise BenchError(f"{text!r} names no scheme; `perfscope bench list` shows them")
    return name, tuple(modifiers)


def check_config(config: BenchConfig) -> None:
    """What can be checked without knowing schemes, models or machines.

    Raises:
        BenchError: something is out of range; the line says what may be.
    """
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    converted(values, BenchConfig, spelled=SPELLED, error=BenchError)
    _check_input(config)
    _check_update(config)
    _check_learning(config)
    for modifier in config.modifiers:
        if modifier.value is not None and not math.isfinite(modifier.value):
            raise BenchError(f"+{modifier}: {modifier.value:g} is not a number that can be used")
    if config.num_ranks % config.num_hosts:
        raise BenchError(f"{config.num_ranks} ranks cannot be spread evenly over {config.num_hosts} hosts")


def _check_learning(config: BenchConfig) -> None:
    try:
        target = None if config.target is None else parse_target(config.target)
    except UsageError as error:
        raise BenchError(str(error)) from None
    if target is not None and target.metric == TOP5 and config.num_classes <= 5:
        raise BenchError("--target top5 needs more than 5 classes; use accuracy")
    if target is not None and target.metric == AUC and config.num_classes != 2:
        raise BenchError(f"--target auc needs 2 classes, not {config.num_classes}; use accuracy")


def _check_update(config: BenchConfig) -> None:
    if config.optimizer in ("adamw", "lamb") and config.momentum:
        raise BenchError(f"{config.optimizer} has moments of its own; leave out --momentum")
    if config.optimizer == "nesterov" and not config.momentum:
        raise BenchError("--optimizer nesterov needs a momentum; add --momentum 0.9")
    if config.warmup >= config.steps:
        raise BenchError(
            f"a warm-up of {config.warmup} steps leaves none of the {config.steps} at the full rate; "
            f"use fewer than {config.steps}"
        )
    if config.label_noise is not None and config.data != "synthetic":
        raise BenchError("--label-noise is for synthetic data; leave it out with --data")


def _check_input(config: BenchConfig) -> None:
    size = "x".join(map(str, config.input_shape))
    if min(config.input_shape) < 1:
        raise BenchError(f"an input of {size} has no elements")
    if max(config.input_shape) > MAX_SIDE:
        raise BenchError(f"an input of {size} is too large; each size must be from 1 to {MAX_SIDE:,}")
    num_elements = config.batch * math.prod(config.input_shape)
    if num_elements > MAX_ELEMENTS:
        raise BenchError(
            f"a batch of {config.batch:,} samples of {size} is {num_elements:,} numbers; "
            f"at most {MAX_ELEMENTS:,} fit into a step"
        )
