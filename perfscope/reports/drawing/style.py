"""Looks for paper, from the page's style sheets: what a class is there, it is here, in the light theme.

Only rules of classes alone count (`.cv-line.fit`, not `.bars text`), and of these the attributes of SVG.
"""

from __future__ import annotations

import re
from functools import cache

from perfscope.reports.asset_files import asset

SHEETS = ("report.css", "machine.css", "curves.css", "history.css")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_MEDIA = re.compile(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_CLASSES = re.compile(r"(?:\.[\w-]+)+")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_ATTRIBUTES = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-linejoin",
    "opacity",
    "fill-opacity",
    "font-size",
    "font-weight",
    "font-family",
    "paint-order",
    "display",
)
MONOSPACE = "DejaVu Sans Mono"  # typst brings it along


@cache
def _sheet() -> tuple[dict[str, str], list[tuple[frozenset[str], dict[str, str]]]]:
    """(variables of the light theme, (classes, declarations) of each rule in order)."""
    text = "\n".join(asset(name) for name in SHEETS)
    light: dict[str, str] = {}
    rules = []
    for match in _RULE.finditer(_MEDIA.sub("", _COMMENT.sub("", text))):
        declared = _declarations(match[2])
        for selector in (class_name.strip() for class_name in match[1].split(",")):
            if selector == ":root":
                light |= declared
            elif _CLASSES.fullmatch(selector):
                rules.append((frozenset(selector[1:].split(".")), declared))
    return light, rules


def _declarations(body: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in body.split(";") if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


@cache
def properties(look: str) -> dict[str, str]:
    """What the style sheets say of an element whose classes are `look`, variables resolved."""
    light, rules = _sheet()
    classes, declared_all = set(look.split()), dict(light)
    # More classes win over fewer, as in CSS; among equals the later rule.
    for wanted, declared in sorted(rules, key=lambda rule: len(rule[0])):
        if wanted <= classes:
            declared_all |= declared
    if "font-size" in declared_all or "color" in declared_all:  # words
        declared_all.setdefault("fill", declared_all.get("color", "var(--ink)"))
    return {name: _resolved(declared_all[name], declared_all) for name in _ATTRIBUTES if name in declared_all}


def _resolved(value: str, variables: dict[str, str]) -> str:
    while match := _VARIABLE.search(value):
        value = value.replace(match[0], variables.get(match[1], "none"))
    if value == "650":  # resvg knows hundreds alone
        return "700"
    return MONOSPACE if "monospace" in value else value.removesuffix("px")


@cache
def paint(look: str) -> str:
    """The look as attributes, with a space in front."""
    return "".join(f' {name}="{value}"' for name, value in properties(look).items())


def font_size(look: str) -> float:
    """Of a text with this look, in pixels."""
    return float(properties(look).get("font-size", "12"))
