"""What a bench run was asked for: one frozen value, passed to every rank as JSON. No torch here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, get_args, get_type_hints

from perfscope.errors import UsageError
from perfscope.runners.mesh import Mesh
from perfscope.vocabulary.axes import LAYOUT, OLD_NAMES, Axis

DTYPES = ("float32", "float64")
DEVICES = ("auto", "cpu", "cuda")
LR_RULES = ("none", "linear", "sqrt")
BINDINGS = ("numa", "core", "none")
BACKENDS = ("auto", "gloo", "nccl", "mpi")
DEFAULT_TIMEOUT_S = 60.0
MAX_SIDE = 1 << 14  # of an input, and its channels
MAX_ELEMENTS = 1 << 34  # numbers of one step's samples
_MODIFIER = re.compile(r"([a-z0-9]+)(?:\(([^()]*)\))?")
_MAX_COUNT = 10**9
_AXES: Mapping[str, Axis] = {**OLD_NAMES, **{axis.value: axis for axis in LAYOUT}}
_COUNT = re.compile(r"\s*0*[1-9][0-9]{0,8}\s*")  # isdigit() would take other scripts' digits, too


class _Range(NamedTuple):
    """What a setting may be, both ends included unless they are said to be open."""

    low: float
    high: float
    above: bool = False  # low itself is not allowed
    below: bool = False  # high itself is not allowed

    def holds(self, value: float) -> bool:
        """False for what is no number, too."""
        low = value > self.low if self.above else value >= self.low
        return low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        """`from 1 to 4,096`, `above 0 and at most 86,400`."""
        low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        if not self.above and not self.below:
            return f"from {low} to {high}"
        return (
            f"{'above' if self.above else 'at least'} {low} and {'below' if self.below else 'at most'} {high}"
        )


# Wide enough for any run that could end, narrow enough that nothing further on overflows or never returns.
_RANGES = {
    "num_ranks": _Range(1, 4096),
    "num_hosts": _Range(1, 4096),
    "batch": _Range(1, MAX_ELEMENTS),
    "steps": _Range(1, _MAX_COUNT),
    "num_classes": _Range(2, 10**6),  # with one class there is nothing to learn
    "learning_rate": _Range(0, 10**6, above=True),
    "base_batch": _Range(1, MAX_ELEMENTS),
    "momentum": _Range(0, 1, below=True),
    "seed": _Range(0, (1 << 63) - 1),
    "period": _Range(1, _MAX_COUNT),
    "moving_rate": _Range(-_MAX_COUNT, _MAX_COUNT),  # the schemes that have one know its real bounds
    "num_microbatches": _Range(1, _MAX_COUNT),
    "dropout": _Range(0, 1, below=True),
    "workers": _Range(0, 256),
    "threads": _Range(1, 4096),
    "timeout_s": _Range(0, 86_400, above=True),
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
        momentum: mu.
        dtype: of weights and samples, one of DTYPES.
        seed: of weights, samples and whatever a scheme draws.
        data: "synthetic", or the path of a folder or .npz.
        workers: threads of each rank that make batches ahead; 0 = none, the training's own thread makes them;
            None = one for stored data, none for synthetic.
        period: tau; steps between two exchanges of periodic schemes; None = the scheme's own default.
        moving_rate: a = eta * rho of elastic averaging; None = 0.9 / number of workers.
        num_microbatches: of pipelines; None = the scheme's default.
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
    num_ranks: int = 1
    mesh: Mesh | None = None
    batch: int = 32
    steps: int = 20
    input_shape: tuple[int, ...] = (3, 32, 32)
    num_classes: int = 16
    learning_rate: float = 0.02
    lr_rule: str = "none"
    base_batch: int | None = None
    momentum: float = 0.0
    dtype: str = "float32"
    seed: int = 0
    data: str = "synthetic"
    workers: int | None = None
    period: int | None = None
    moving_rate: float | None = None
    num_microbatches: int | None = None
    dropout: float = 0.0
    num_hosts: int = 1
    device: str = "auto"
    backend: str = "auto"
    bind: str = "none"
    threads: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    save_weights: str | None = None

    @property
    def full_name(self) -> str:
        """The scheme with its modifiers: `dp.ddp+topk(0.01)`."""
        return "+".join((self.scheme, *map(str, self.modifiers)))

    def modifier(self, name: str) -> Modifier | None:
        """The modifier of that name, if it was given."""
        return next((one for one in self.modifiers if one.name == name), None)

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
        try:
            raw: Mapping[str, Any] = json.loads(text)
            known = {field.name for field in fields(cls)}
            if unknown := sorted(set(raw) - known):
                raise BenchError(f"unknown settings of a bench run: {', '.join(unknown)}")
            values = dict(raw)
            values["modifiers"] = tuple(_modifier(one) for one in values.get("modifiers", ()))
            values["mesh"] = _mesh(values.get("mesh"))
            if values.get("input_shape") is not None:
                values["input_shape"] = tuple(values["input_shape"])
            for name, value in values.items():
                _require_type(name, value)
            return cls(**values)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise BenchError(f"this is no configuration of a bench run: {error}") from error


def parse_scheme(text: str) -> tuple[str, tuple[Modifier, ...]]:
    """`dp.ddp+topk(0.01)+prio` as name and modifiers; names are not looked up here.

    Raises:
        BenchError: it is not written like that, or a modifier comes twice.
    """
    name, *words = text.strip().split("+")
    modifiers: list[Modifier] = []
    for word in words:
        found = _MODIFIER.fullmatch(word.strip())
        if not found:
            raise BenchError(f"{word!r} in {text!r} is no modifier; write +fp16 or +topk(0.01)")
        value = None
        if found[2] is not None:
            try:
                value = float(found[2].rstrip("%")) / (100 if found[2].endswith("%") else 1)
            except ValueError:
                raise BenchError(f"+{word}: {found[2]!r} is not a number") from None
        if any(one.name == found[1] for one in modifiers):
            raise BenchError(f"+{found[1]} is given twice in {text!r}")
        modifiers.append(Modifier(found[1], value))
    if not name:
        raise BenchError(f"{text!r} names no scheme; `perfscope bench list` shows them")
    return name, tuple(modifiers)


def parse_mesh(text: str) -> Mesh:
    """`dp=2,tp=2`, or by position `2,2` or `2,1,2`: data, tensor and pipeline parts.

    The letters D, M and S stand for dp, tp and pp.

    Raises:
        BenchError: it is not written like that, or an axis comes twice.
    """
    words = text.split(",")
    if 2 <= len(words) <= 3 and all(map(_COUNT.fullmatch, words)):
        return Mesh.positional(*map(int, words))
    axes: dict[Axis, int] = {}
    for name, equals, size in (word.partition("=") for word in words):
        axis = _AXES.get(name.strip())
        if equals and axis is None:
            raise BenchError(f"mesh {text!r}: there is no axis {name!r}; there are {', '.join(LAYOUT)}")
        if axis is None or axis in axes or not _COUNT.fullmatch(size):
            raise BenchError(
                f"mesh {text!r} is not AXIS=PARTS,... such as dp=2,tp=2: numbers above 0, each axis once"
            )
        axes[axis] = int(size)
    return Mesh(axes)


def check_config(config: BenchConfig) -> None:
    """What can be checked without knowing schemes, models or machines.

    Raises:
        BenchError: something is out of range; the line says what may be.
    """
    for name, allowed_range in _RANGES.items():
        value = getattr(config, name)
        if value is not None and not allowed_range.holds(value):
            raise BenchError(f"{_words(name)} must be {allowed_range}, not {_shown(value)}")
    _check_input(config)
    for modifier in config.modifiers:
        if modifier.value is not None and not math.isfinite(modifier.value):
            raise BenchError(f"+{modifier}: {modifier.value:g} is not a number that can be used")
    choices = {
        "dtype": DTYPES,
        "device": DEVICES,
        "lr_rule": LR_RULES,
        "bind": BINDINGS,
        "backend": BACKENDS,
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise BenchError(f"{_words(name)} {getattr(config, name)!r} is none of {', '.join(allowed)}")
    if config.num_ranks % config.num_hosts:
        raise BenchError(f"{config.num_ranks} ranks cannot be spread evenly over {config.num_hosts} hosts")


def _check_input(config: BenchConfig) -> None:
    size = "x".join(map(str, config.input_shape))
    if min(config.input_shape) < 1:
        raise BenchError(f"an input of {size} has no elements")
    if max(config.input_shape) > MAX_SIDE:
        raise BenchError(f"an input of {size} is too large; each size must be from 1 to {MAX_SIDE:,}")
    found = config.batch * math.prod(config.input_shape)
    if found > MAX_ELEMENTS:
        raise BenchError(
            f"a batch of {config.batch:,} samples of {size} is {found:,} numbers; "
            f"at most {MAX_ELEMENTS:,} fit into a step"
        )


def _require_type(name: str, value: Any) -> None:
    """Raises BenchError for a value that the field's annotation does not allow; an int is a float, too."""
    hint = _HINTS[name]
    if name == "input_shape":
        fits = isinstance(value, tuple) and len(value) in (1, 3) and all(type(one) is int for one in value)
        kind = "one or three whole numbers"
    elif name in ("modifiers", "mesh"):
        return
    else:
        allowed = get_args(hint) or (hint,)
        kind = {int: "a whole number", float: "a number", str: "a text"}[allowed[0]]
        fits = type(value) in allowed or (float in allowed and type(value) is int)
    if not fits:
        raise BenchError(f"{_words(name)} must be {kind}, not {_shown(value)}")


def _mesh(raw: Any) -> Mesh | None:
    """Axes by name, or the list [D, M, S] of older records."""
    if raw is None:
        return None
    if isinstance(raw, list) and len(raw) == 3:
        axes = dict(zip(("D", "M", "S"), raw, strict=True))
    else:
        axes = raw if isinstance(raw, dict) else {"": 0}
    if not all(name in _AXES and type(size) is int and size > 0 for name, size in axes.items()):
        raise BenchError(f"the mesh must be axes with whole numbers above 0, not {_shown(raw)}")
    return Mesh({_AXES[name]: size for name, size in axes.items()})


def _modifier(raw: Mapping[str, Any]) -> Modifier:
    found = Modifier(**raw)
    if type(found.name) is not str or type(found.value) not in (int, float, type(None)):
        raise BenchError(f"a modifier must be a name and a number, not {_shown(raw)}")
    return found


def _shown(value: Any) -> str:
    """On one line, however long it is."""
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _words(name: str) -> str:
    special = {
        "num_ranks": "the number of ranks",
        "timeout_s": "the timeout in seconds",
        "workers": "the number of workers",
    }
    return special.get(name, "the " + name.replace("num_", "number of ").replace("_", " "))


_HINTS: Mapping[str, Any] = get_type_hints(BenchConfig)
