"""Which model each run trained, so that two of one name are not compared as one.

A bench run's record says its model. Any other program's is known by its root module's type, which says
little ("Sequential", and "DistributedDataParallel" of every wrapped one), and by its layers: their names,
types and own parameters. A rank of tensor- or pipeline-parallel or sharded training holds shares of them: it
contradicts a model only where it holds more of a layer than the whole model has, or a layer of another type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256

from msgspec import Struct

from perfscope.analysis.study.results import WARN, Problem, RunEntry, StudyRun
from perfscope.messages.comparison import problems as words
from perfscope.rundir.records import RootModule
from perfscope.vocabulary.comparison import ProblemKind

_SHARDED = ("FullyShardedDataParallel", "FSDP", "DeepSpeedEngine")  # how their root's type begins
Layers = Mapping[str, tuple[str, int]]  # name -> type, own parameters


class Model(Struct, frozen=True, kw_only=True):
    """`layers`: those with parameters, over all ranks; empty: not known. `is_whole`: every rank has all."""

    name: str
    layers: Layers
    is_whole: bool
    num_ranks: int

    @property
    def num_params(self) -> int:
        return sum(params for _, params in self.layers.values())

    @property
    def identity(self) -> str:
        """The same for the same layers."""
        return sha256(repr(sorted(self.layers.items())).encode()).hexdigest()[:8]


def model_of(entry: RunEntry) -> Model:
    """What the run says of its model."""
    scheme = entry.analysis.run.scheme
    num_ranks = len(entry.analysis.ranks)
    if entry.analysis.bench:
        shape = scheme.size_of_sample if scheme is not None else ""
        name = entry.analysis.bench.model + (f", input {shape}" if shape else "")
        return Model(name=name, layers={}, is_whole=False, num_ranks=num_ranks)
    labels = entry.analysis.run.labels
    if labels.get("framework") and labels.get("model"):  # one model, whatever a framework calls its layers
        return Model(name=labels["model"], layers={}, is_whole=False, num_ranks=num_ranks)
    roots = [meta.root or RootModule() for _, meta in sorted(entry.metas.items())]
    # The name is that of what wrappers hold.
    name = next((module.name or module.type for module in roots if module.name or module.type), "")
    return Model(name=name, layers=_layers(entry), is_whole=_is_whole(roots, num_ranks), num_ranks=num_ranks)


def _is_whole(roots: Sequence[RootModule], num_ranks: int) -> bool:
    if num_ranks == 1:
        return True
    return bool(roots) and all(
        root.data_parallel and root.dp_size == num_ranks and not root.type.startswith(_SHARDED)
        for root in roots
    )


def _layers(entry: RunEntry) -> Layers:
    """By layers.json where it was read, for it lists layers that no traced step ran; else as analyzed."""
    layers: dict[str, tuple[str, int]] = {}
    for _, record in sorted(entry.layers.items()):
        for row in record.layers:
            _add(layers, row.layer, str(row.type), row.params)
    if not entry.layers:
        for layer in entry.analysis.layers:
            _add(layers, layer.layer, layer.module_type or "", layer.num_params)
    return layers


def _add(layers: dict[str, tuple[str, int]], name: str, kind: str, params: object) -> None:
    if isinstance(params, int) and params > 0:
        layers[name] = (kind, max(params, layers.get(name, ("", 0))[1]))


def model_words(models: Sequence[Model]) -> list[str]:
    """What each is called: its name, with its parameters where models of one name differ; "" = not known."""
    by_name: dict[str, dict[str, Model]] = defaultdict(dict)
    for model in models:
        if model.is_whole and model.layers:
            by_name[model.name].setdefault(model.identity, model)
    return [_word(model, list(by_name[model.name].values())) for model in models]


def _word(model: Model, wholes: Sequence[Model]) -> str:
    if not model.layers or not wholes:
        return model.name
    if not model.is_whole:
        fitting = [candidate for candidate in wholes if not _contradicts(model, candidate)]
        if not fitting:
            return words.model_of(model.name, model.num_params, "", on_rank=True)
        return _word(fitting[0], wholes) if len(fitting) == 1 else model.name
    if len(wholes) == 1 and model.identity == wholes[0].identity:
        return model.name
    as_large = sum(candidate.num_params == model.num_params for candidate in wholes)
    identity = model.identity if as_large > 1 else ""
    return words.model_of(model.name, model.num_params, identity, on_rank=False)


def _contradicts(part: Model, model: Model) -> bool:
    both = part.layers.keys() & model.layers.keys()
    return any(
        part.layers[name][0] != model.layers[name][0] or part.layers[name][1] > model.layers[name][1]
        for name in both
    )


def doubtful_models(runs: Sequence[StudyRun], models: Mapping[str, Model]) -> list[Problem]:
    """Runs of one name of whose ranks it is not known whether they hold shares of the same model.

    Args:
        runs: of the study.
        models: by label.
    """
    by_word: dict[str, list[StudyRun]] = defaultdict(list)
    for run in runs:
        if models[run.label].layers:
            by_word[run.model].append(run)
    doubtful = []
    for word, members in by_word.items():
        models_of_members = [models[run.label] for run in members]
        unlike = [model for model in models_of_members[1:] if _doubtful(models_of_members[0], model)]
        if not unlike or all(model.is_whole for model in models_of_members):
            continue
        sizes = sorted({model.num_params for model in models_of_members})
        labels = tuple(run.label for run in members)
        text = words.model_parts(labels, len(runs), (sizes[0], sizes[-1]), word)
        doubtful.append(Problem(severity=WARN, id=ProblemKind.MODEL_PARTS, text=text, runs=labels))
    return doubtful


def _doubtful(model: Model, other: Model) -> bool:
    """Other layers, or other parts of them on as many ranks."""
    if model.layers.keys() != other.layers.keys():
        return True
    return model.num_ranks == other.num_ranks and model.identity != other.identity
