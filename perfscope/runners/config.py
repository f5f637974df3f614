"""What a bench run was asked for: one frozen value, passed to every rank as JSON. No torch here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from perfscope.errors import UsageError

DTYPES = ("float32", "float64")
DEVICES = ("auto", "cpu", "cuda")
LR_RULES = ("none", "linear", "sqrt")
BINDINGS = ("numa", "core", "none")
BACKENDS = ("auto", "gloo", "nccl", "mpi")
DEFAULT_TIMEOUT_S = 60.0
_MODIFIER = re.compile(r"([a-z0-9]+)(?:\(([^()]*)\))?")


class BenchError(UsageError):
    """A bench run that cannot be: unknown name, bad mesh, unstable rate. The message is one line."""


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
        mesh: (D, M, S) data x model x pipeline parts; None = the scheme's default for num_ranks.
        batch: B, samples in one step over all ranks.
        steps: updates of the model; for schemes without a common step, updates made by each worker.
        input_shape: (channels, height, width) of one sample.
        num_classes: classes of the synthetic data, width of the last layer.
        learning_rate: eta at `base_batch`.
        lr_rule: how eta follows the effective batch: none, linear or sqrt of effective batch / base_batch.
        base_batch: batch that learning_rate is meant for; None = batch.
        momentum: mu.
        dtype: of weights and samples, one of DTYPES.
        seed: of weights, samples and whatever a scheme draws.
        data: "synthetic", or the path of a folder or .npz.
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
    mesh: tuple[int, int, int] | None = None
    batch: int = 32
    steps: int = 20
    input_shape: tuple[int, int, int] = (3, 32, 32)
    num_classes: int = 16
    learning_rate: float = 0.02
    lr_rule: str = "none"
    base_batch: int | None = None
    momentum: float = 0.0
    dtype: str = "float32"
    seed: int = 0
    data: str = "synthetic"
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
        return json.dumps(asdict(self), separators=(",", ":"))

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
            values["modifiers"] = tuple(Modifier(**one) for one in values.get("modifiers", ()))
            for name in ("mesh", "input_shape"):
                if values.get(name) is not None:
                    values[name] = tuple(values[name])
            return cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
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


def check_config(config: BenchConfig) -> None:
    """What can be checked without knowing schemes, models or machines.

    Raises:
        BenchError: something is out of range; the line says what may be.
    """
    positive = ("num_ranks", "batch", "steps", "num_classes", "num_hosts")
    for name in positive:
        if getattr(config, name) < 1:
            raise BenchError(f"{_words(name)} must be at least 1, not {getattr(config, name)}")
    for name in ("period", "num_microbatches", "base_batch", "threads"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise BenchError(f"{_words(name)} must be at least 1, not {value}")
    _check_numbers(config)
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


def _check_numbers(config: BenchConfig) -> None:
    if min(config.input_shape) < 1:
        raise BenchError(f"an input of {'x'.join(map(str, config.input_shape))} has no pixels")
    if not config.learning_rate > 0:
        raise BenchError(f"the learning rate must be above 0, not {config.learning_rate:g}")
    for name in ("momentum", "dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise BenchError(f"{name} must be in [0, 1), not {getattr(config, name):g}")
    if not config.timeout_s > 0:
        raise BenchError(f"the timeout must be above 0 s, not {config.timeout_s:g}")


def with_mesh(config: BenchConfig, mesh: tuple[int, int, int]) -> BenchConfig:
    """The same run with its mesh settled."""
    return replace(config, mesh=mesh)


def _words(name: str) -> str:
    return {"num_ranks": "the number of ranks", "num_classes": "the number of classes"}.get(
        name, "the " + name.replace("num_", "number of ").replace("_", " ")
    )
