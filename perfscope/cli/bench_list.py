"""`perfscope bench list`: the schemes, modifiers and models there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.bench_options import require_torch
from perfscope.cli.output import print_result
from perfscope.errors import UsageError
from perfscope.runners.catalogue.families import FAMILIES, family_of

if TYPE_CHECKING:
    from perfscope.runners.schemes.base import Scheme

SCHEMA_VERSION = 1


@click.command("list", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[SCHEME]", required=False)
@click.option("--family", metavar="NAME", help="Only this family: " + ", ".join(FAMILIES) + ".")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(name: str | None, family: str | None, as_json: bool) -> None:
    """Show the schemes, modifiers and models there are, or all about one scheme.

    \b
    Examples:
      perfscope bench list
      perfscope bench list --family easgd
      perfscope bench list hy.owt
    """
    require_torch()
    from perfscope.runners.config import parse_scheme
    from perfscope.runners.schemes.registry import SCHEMES, find_scheme

    if name is not None:
        scheme = find_scheme(parse_scheme(name)[0])
        print_result(_as_json(_details(scheme)) if as_json else _details_text(scheme))
        return
    if family is not None and family not in FAMILIES:
        from perfscope.runners.sweep.settings import nearest

        raise UsageError(f"there is no family {family!r}{nearest(family, FAMILIES)}")
    chosen = [one for one in SCHEMES if family is None or family_of(one.name) == family]
    if as_json:
        document = {
            "schemes": [_details(one) for one in chosen],
            "modifiers": [{"name": one, "summary": text} for one, text in _modifiers()],
            "models": [{"name": one, "summary": text} for one, text in _models()],
        }
        print_result(_as_json(document))
        return
    print_result(_list_text(chosen, everything=family is None))


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=1, ensure_ascii=False) + "\n"


def _details(scheme: type[Scheme]) -> dict[str, Any]:
    return {
        "name": scheme.name,
        "family": family_of(scheme.name),
        "summary": scheme.summary,
        "rule": scheme.rule,
        "axes": scheme.axes._asdict(),
        "splits": list(scheme.splits),
        "volume": scheme.volume,
        "equals_serial": scheme.equals_serial,
        "criterion": scheme.criterion,
        "deterministic": scheme.deterministic,
        "one_host": scheme.one_host,
        "shared_batch": scheme.shared_batch,
        "modifiers": sorted(scheme.modifiers),
        "backends": list(scheme.backends),
        "source": scheme.source,
    }


def _list_text(schemes: list[type[Scheme]], *, everything: bool) -> str:
    lines: list[str] = []
    width = max((len(one.name) for one in schemes), default=0)
    for family, title in FAMILIES.items():
        members = [one for one in schemes if family_of(one.name) == family]
        if members:
            lines += [title, *(f"  {one.name:{width}}  {one.summary}" for one in members), ""]
    if everything:
        for title, rows in (("Modifiers, SCHEME+NAME", _modifiers()), ("Models", _models())):
            if rows:
                wide = max(len(name) for name, _ in rows)
                lines += [title, *(f"  {name:{wide}}  {text}" for name, text in rows), ""]
    lines.append("All about one: perfscope bench list SCHEME")
    return "\n".join(lines) + "\n"


def _details_text(scheme: type[Scheme]) -> str:
    from perfscope.runners.catalogue.scheme_words import scheme_facts

    lines = [f"{scheme.name}: {scheme.summary}", ""]
    facts = scheme_facts(scheme)
    width = max(len(title) for title, _ in facts)
    for title, text in facts:
        lines += click.wrap_text(
            text, width=100, initial_indent=f"  {title:{width}}  ", subsequent_indent=" " * (width + 4)
        ).splitlines()
    return "\n".join(lines) + "\n"


def _modifiers() -> list[tuple[str, str]]:
    from perfscope.runners.catalogue.scheme_words import modifier_lines

    return modifier_lines()


def _models() -> list[tuple[str, str]]:
    from perfscope.runners.models.registry import MODELS

    return [(one.name, one.summary) for one in MODELS]
