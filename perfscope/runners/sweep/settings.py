"""Settings of a bench run as users write them (options of `bench run`, keys of a sweep's TOML), and as a
BenchConfig.

One table serves both, so that what can be set in one place can be set in the other under the same name.
No torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from perfscope.runners.config import BenchConfig, BenchError, Modifier, parse_mesh, parse_scheme
from perfscope.runners.mesh import Mesh


class Setting(NamedTuple):
    """One thing that can be set: its field in BenchConfig, and how what the user wrote is read."""

    field: str
    read: Callable[[str, Any], Any]


def _whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
            raise ValueError
        return int(value)
    except (TypeError, ValueError, OverflowError):  # inf
        raise BenchError(f"{name} = {value!r} is not a whole number") from None


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise BenchError(f"{name} = {value!r} is not a number") from None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BenchError(f"{name} = {value!r} is not a word")
    return value.strip()


def _path(name: str, value: Any) -> str:
    """Absolute: ranks may be started elsewhere."""
    text = _text(name, value)
    return text if text == "synthetic" else str(Path(text).expanduser().absolute())


def _mesh(name: str, value: Any) -> Mesh:
    return parse_mesh(",".join(map(str, value)) if isinstance(value, list | tuple) else _text(name, value))


def _shape(name: str, value: Any) -> tuple[int, ...]:
    words = (
        list(map(str, value))
        if isinstance(value, list | tuple)
        else _text(name, str(value)).lower().split("x")
    )
    if len(words) not in (1, 3) or not all(re.fullmatch(r"[0-9]{1,9}", word.strip()) for word in words):
        raise BenchError(f"{name} {value!r} is not CHANNELSxHEIGHTxWIDTH such as 3x32x32, or one number")
    return tuple(map(int, words))


SETTINGS: dict[str, Setting] = {
    "model": Setting("model", _text),
    "mesh": Setting("mesh", _mesh),
    "ranks": Setting("num_ranks", _whole),
    "batch": Setting("batch", _whole),
    "steps": Setting("steps", _whole),
    "input": Setting("input_shape", _shape),
    "classes": Setting("num_classes", _whole),
    "lr": Setting("learning_rate", _number),
    "lr_rule": Setting("lr_rule", _text),
    "base_batch": Setting("base_batch", _whole),
    "momentum": Setting("momentum", _number),
    "dtype": Setting("dtype", _text),
    "seed": Setting("seed", _whole),
    "data": Setting("data", _path),
    "workers": Setting("workers", _whole),
    "period": Setting("period", _whole),
    "moving_rate": Setting("moving_rate", _number),
    "microbatches": Setting("num_microbatches", _whole),
    "dropout": Setting("dropout", _number),
    "device": Setting("device", _text),
    "backend": Setting("backend", _text),
    "bind": Setting("bind", _text),
    "threads": Setting("threads", _whole),
    "timeout": Setting("timeout_s", _number),
    "save_weights": Setting("save_weights", _path),
}


class ClusterSize(NamedTuple):
    """Hosts of an emulated cluster, and ranks on each."""

    hosts: int
    ranks_per_host: int


def parse_modifiers(words: Sequence[str]) -> tuple[Modifier, ...]:
    """`topk(0.01)` or `+topk(0.01)`, one each.

    Raises:
        BenchError: one is not written like that, or comes twice.
    """
    return parse_scheme("+".join(["any", *(word.strip().lstrip("+") for word in words)]))[1] if words else ()


def config_of(
    scheme: str,
    settings: Mapping[str, Any],
    *,
    modifiers: Sequence[str] = (),
    cluster: ClusterSize | None = None,
    default_learning_rate: Callable[[str], float] | None = None,
    default_input: Callable[[str], tuple[int, ...] | None] | None = None,
) -> BenchConfig:
    """The run that the settings ask for; names and meshes are not checked here, planning does.

    Without `ranks` there are as many as the mesh has places, else as the cluster holds, else 1 for `serial`,
    else 2.

    Args:
        scheme: with modifiers, if any: dp.ddp+fp16.
        settings: by the names of SETTINGS; None = not set.
        modifiers: more of them.
        cluster: the emulated cluster it runs on.
        default_learning_rate: of a model, by name, for runs that set none.
        default_input: shape of a model's samples, by name, for runs that set none; None: BenchConfig's.

    Raises:
        BenchError: a name nobody knows (with the nearest), or a value that is no such thing.
    """
    name, own = parse_scheme(scheme)
    every = (*own, *parse_modifiers(modifiers))
    if len({one.name for one in every}) < len(every):
        raise BenchError(f"a modifier is given twice: {', '.join(f'+{one}' for one in every)}")
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if value is None:
            continue
        setting = SETTINGS.get(key)
        if setting is None:
            raise BenchError(f"there is no setting {key!r}{nearest(key, SETTINGS)}")
        values[setting.field] = setting.read(key, value)
    if "num_ranks" not in values:
        values["num_ranks"] = _default_ranks(name, values.get("mesh"), cluster)
    if cluster is not None:
        _require_room(values["num_ranks"], cluster)
        values["num_hosts"] = cluster.hosts
    model = values.get("model", BenchConfig(scheme=name).model)
    if "learning_rate" not in values and default_learning_rate is not None:
        values["learning_rate"] = default_learning_rate(model)
    if "input_shape" not in values and default_input is not None and (shape := default_input(model)):
        values["input_shape"] = shape
    return BenchConfig(scheme=name, modifiers=every, **values)


def nearest(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """`; did you mean batch?`, or the list of what there is."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def _default_ranks(scheme: str, mesh: Mesh | None, cluster: ClusterSize | None) -> int:
    if mesh is not None:
        return mesh.num_ranks
    if cluster is not None:
        return cluster.hosts * cluster.ranks_per_host
    return 1 if scheme == "serial" else 2


def _require_room(num_ranks: int, cluster: ClusterSize) -> None:
    places = cluster.hosts * cluster.ranks_per_host
    if num_ranks != places:
        raise BenchError(
            f"the cluster holds {cluster.hosts} x {cluster.ranks_per_host} = {places} ranks, but the run has "
            f"{num_ranks}; make them equal (--ranks, --mesh or --cluster)"
        )
