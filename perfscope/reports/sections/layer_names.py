"""Layers whose name is only a number in a container, shown with what they are: ``features.3 (Conv2d)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perfscope.analysis.results import LayerResult

_PHASES = ("forward", "backward", "optimizer", "other")  # as the analysis words them


def layer_names(layers: Iterable[LayerResult]) -> dict[str, str]:
    """Name -> name and type, of those layers that a name alone says nothing about and whose type is known."""
    return {
        layer.layer: f"{layer.layer} ({layer.module_type})"
        for layer in layers
        if layer.module_type and layer.layer.rpartition(".")[2].isdecimal()
    }


def with_types(sentence: str, names: Mapping[str, str]) -> str:
    """A sentence of the analysis with the layers in it named by `names`: ``backward of 7 (Linear)``.

    A number is taken for a layer only where the analysis' own wording says that one is meant.
    """
    if not names:
        return sentence
    names_pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    phases = "|".join(_PHASES)
    pattern = (
        rf"\b(?P<lead>(?:{phases}) of|layer|above all|in) (?P<name>{names_pattern})"
        rf"(?P<phase> \((?:{phases})\))?(?!\w|\.\w)"
    )

    def titled(match: re.Match[str]) -> str:
        lead, name, phase = match["lead"], match["name"], match["phase"]
        ends = match.end() == len(sentence) or sentence[match.end()] in ":,.;)"
        if lead == "in" and not phase and not ends:  # "in 7 of 9 calls"
            return match.group()
        title = f"{names[name][:-1]}, {phase[2:]}" if phase else names[name]
        return f"{lead} {title}"

    return re.sub(pattern, titled, sentence)
