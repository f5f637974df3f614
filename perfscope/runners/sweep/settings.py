"""Settings of a bench run as users write them (options of `bench run`, keys of a sweep's TOML), and as a
BenchConfig.

One table serves both, so that what can be set in one place can be set in the other under the same name.
No torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from perfscope.runners.config import (
    LEARNING_RATES,
    SHAPE,
    SPELLED,
    BenchConfig,
    BenchError,
    Modifier,
    parse_scheme,
)
from perfscope.runners.mesh import Mesh
from perfscope.settings import converted, given


class PathSetting(str):
    """A file or folder, absolute: ranks may be started elsewhere."""

    @classmethod
    def parse(cls, value: object) -> PathSetting:
        if not isinstance(value, str) or not value.strip():
            raise ValueError("a path")
        text = value.strip()
        return cls(text if text == "synthetic" else Path(text).expanduser().absolute())


class SampleShape(tuple[int, ...]):
    """Of one sample."""

    @classmethod
    def parse(cls, value: object) -> SampleShape:
        sizes = value if isinstance(value, list | tuple) else str(value).lower().split("x")
        if len(sizes) not in (1, 3) or not all(
            re.fullmatch(r"\s*[0-9]{1,9}\s*", str(size)) for size in sizes
        ):
            raise ValueError(SHAPE)
        return cls(map(int, sizes))


_READ = {"input_shape": SampleShape, "data": PathSetting, "save_weights": PathSetting}
FIELDS = {
    SPELLED.get(name, name): (name, _READ.get(name, hint) | None)
    for name, hint in get_type_hints(BenchConfig, include_extras=True).items()
    if name not in ("scheme", "modifiers", "num_hosts", "chunk_from")
}
SETTINGS = tuple(FIELDS)
# What can be set, under the names that users know.
SettingsTable = make_dataclass(
    "SettingsTable", [(key, hint, None) for key, (_, hint) in FIELDS.items()], kw_only=True
)


class ClusterSize(NamedTuple):
    """Hosts of an emulated cluster, and ranks on each."""

    hosts: int
    ranks_per_host: int


def parse_modifiers(texts: Sequence[str]) -> tuple[Modifier, ...]:
    """`topk(0.01)` or `+topk(0.01)`, one each.

    Raises:
        BenchError: one is not written like that, or comes twice.
    """
    return parse_scheme("+".join(["any", *(word.strip().lstrip("+") for word in texts)]))[1] if texts else ()


def config_of(
    scheme: str,
    settings: Mapping[str, Any],
    *,
    modifiers: Sequence[str] = (),
    cluster: ClusterSize | None = None,
    default_learning_rate: Callable[[str], float] | None = None,
    default_input: Callable[[str], tuple[int, ...] | None] | None = None,
    default_classes: Callable[[str], int | None] | None = None,
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
        default_classes: their classes, likewise.

    Raises:
        BenchError: an unknown name (with the nearest), or a value that is no such thing.
    """
    name, own_modifiers = parse_scheme(scheme)
    every = (*own_modifiers, *parse_modifiers(modifiers))
    if len({modifier.name for modifier in every}) < len(every):
        raise BenchError(f"a modifier is given twice: {', '.join(f'+{modifier}' for modifier in every)}")
    asked = {key: value for key, value in settings.items() if value is not None}
    table = given(converted(asked, SettingsTable, strict=False, error=BenchError))
    values = {FIELDS[key][0]: value for key, value in table.items()}
    if "num_ranks" not in values:
        values["num_ranks"] = _default_ranks(name, values.get("mesh"), cluster)
    if cluster is not None:
        _require_room(values["num_ranks"], cluster)
        values["num_hosts"] = cluster.hosts
    model = values.get("model", BenchConfig(scheme=name).model)
    if "learning_rate" not in values and default_learning_rate is not None:
        learning_rate = LEARNING_RATES.get(values.get("optimizer", ""))
        values["learning_rate"] = default_learning_rate(model) if learning_rate is None else learning_rate
    if "input_shape" not in values and default_input is not None and (shape := default_input(model)):
        values["input_shape"] = shape
    if "num_classes" not in values and default_classes is not None and (classes := default_classes(model)):
        values["num_classes"] = classes
    return BenchConfig(scheme=name, modifiers=every, **values)


def _default_ranks(scheme: str, mesh: Mesh | None, cluster: ClusterSize | None) -> int:
    if mesh is not None:
        return mesh.num_ranks
    if cluster is not None:
        return cluster.hosts * cluster.ranks_per_host
    return 1 if scheme == "serial" else 2


def _require_room(num_ranks: int, cluster: ClusterSize) -> None:
    slots = cluster.hosts * cluster.ranks_per_host
    if num_ranks != slots:
        raise BenchError(
            f"the cluster holds {cluster.hosts} x {cluster.ranks_per_host} = {slots} ranks, but the run has "
            f"{num_ranks}; make them equal (--ranks, --mesh or --cluster)"
        )
