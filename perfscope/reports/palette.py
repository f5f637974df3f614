"""The report's colors, read from the style sheet so that screen and paper cannot drift apart."""

from __future__ import annotations

import re
from functools import cache
from types import MappingProxyType

from perfscope.reports.asset_files import asset

_VARIABLE = re.compile(r"--([\w-]+):\s*(#[0-9a-fA-F]{6})\s*;")
_BLOCK = re.compile(r"(:root[^{]*)\{([^}]*)\}")


def theme_blocks(css: str) -> list[tuple[str, dict[str, str]]]:
    """(selector, colors) of every `:root` rule of a style sheet, in order."""
    return [(m[1].strip(), dict(_VARIABLE.findall(m[2]))) for m in _BLOCK.finditer(css)]


@cache
def light_palette() -> MappingProxyType[str, str]:
    """Color by variable name without dashes in front: ``ink``, ``part-compute``, ``part-compute-ink``."""
    css = asset("report.css")
    return MappingProxyType(theme_blocks(css)[0][1])
