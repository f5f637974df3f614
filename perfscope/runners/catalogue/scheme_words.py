"""What is documented about schemes, in lists and in docs/schemes.md: from class attributes."""

from __future__ import annotations

from perfscope.messages.sentences import clause
from perfscope.runners.compression.registry import COMPRESSIONS, OTHER_MODIFIERS
from perfscope.runners.mesh import Mesh
from perfscope.runners.schemes.base import Scheme
from perfscope.vocabulary.axes import Axis

_AXES = {
    Axis.DP: "data",
    Axis.FSDP: "sharded data",
    Axis.TP: "tensor",
    Axis.SP: "tensor and sequence",
    Axis.EP: "experts",
    Axis.PP: "pipeline",
    Axis.CP: "context",
    Axis.NUMA: "replicas of a host",
}


def scheme_facts(scheme: type[Scheme]) -> list[tuple[str, str]]:
    """(title, text), in the order of reading."""
    axes = scheme.axes
    facts = [
        ("rule", scheme.rule),
        ("sends", scheme.volume),
        ("weights", result_words(scheme)),
        ("mesh", mesh_words(scheme)),
        ("batch", _batch_words(scheme)),
        (
            "axes",
            "; ".join(
                f"{column} {value}" for column, value in axes.record().items() if column != "compression"
            ),
        ),
        ("modifiers", ", ".join(f"+{scheme_class}" for scheme_class in sorted(scheme.modifiers)) or "none"),
        ("runs on", ", ".join(scheme.backends) + ("; one host only" if scheme.one_host else "")),
    ]
    if scheme.source:
        facts.append(("source", scheme.source))
    return facts


def _batch_words(scheme: type[Scheme]) -> str:
    """Who has samples of its own, seen on the mesh that 4 ranks get."""
    mesh = scheme.default_mesh(4) if scheme.splits else Mesh()
    parts = scheme.num_parts(mesh)
    if parts == mesh.num_ranks and parts > mesh.num_data_parts:
        return "cut over all ranks"
    if parts == mesh.num_ranks - 1 and mesh.num_ranks > 1:
        return "cut over the P - 1 workers"
    return "cut over the data parts"


def result_words(scheme: type[Scheme]) -> str:
    """What the trained weights are compared with."""
    if scheme.equals_serial:
        text = "equal to serial training's, up to rounding"
        return f"{text}; {scheme.criterion}" if scheme.criterion else text
    repeat = "the same in every run" if scheme.deterministic else "different from run to run"
    return f"{clause(scheme.criterion) or 'not those of serial training'}; {repeat}"


def mesh_words(scheme: type[Scheme]) -> str:
    """Which parts it can be cut into."""
    if not scheme.splits:
        return "one rank"
    return "splits " + " and ".join(f"{_AXES[axis]} ({axis})" for axis in scheme.splits)


def modifier_lines() -> list[tuple[str, str]]:
    """(+name, one line) of every modifier."""
    lines = []
    for compression in COMPRESSIONS:
        number = (
            ""
            if compression.default is None
            else f" ({compression.name}(R), R {compression.number}; {compression.default:g} without)"
        )
        lines.append((f"+{compression.name}", f"{compression.summary}{number}"))
    return [*lines, *((f"+{name}", text) for name, text in OTHER_MODIFIERS)]
