"""`perfscope bench list`: the schemes, modifiers and models there are."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.bench.options import require_torch
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.errors import UsageError
from perfscope.runners.catalogue.families import FAMILIES, family_of
from perfscope.settings import nearest
from perfscope.vocabulary.taxonomy import COLUMNS, HYBRID, CompressionKind

if TYPE_CHECKING:
    from perfscope.runners.schemes.base import Scheme

SCHEMA_VERSION = 1


@click.command("list", context_settings=HELP)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--family", metavar="NAME", help="Only this family: " + ", ".join(FAMILIES) + ".")
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help=f"Only schemes of this kind; repeatable. Columns: {', '.join(COLUMNS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(name: str | None, family: str | None, where: tuple[str, ...], as_json: bool) -> None:
    """Show the schemes, modifiers and models there are, or all about one of them, or a family.

    \b
    Examples:
      perfscope bench list
      perfscope bench list --family easgd
      perfscope bench list --where synchrony=asynchronous --where topology=server
      perfscope bench list hy.owt
      perfscope bench list topk
    """
    wanted = [_condition(text) for text in where]
    if name is not None and wanted and name not in FAMILIES:
        raise UsageError(f"--where chooses among schemes; leave it or {name} out")
    require_torch()
    from perfscope.runners.config import parse_scheme
    from perfscope.runners.schemes.registry import SCHEMES, find_scheme

    if name in FAMILIES and name not in {scheme_class.name for scheme_class in SCHEMES}:
        name, family = None, name
    if name is not None:
        other = _modifier_or_model(name)
        if other is not None:
            print_result(_as_json(other) if as_json else _other_text(other))
            return
        scheme = find_scheme(parse_scheme(name)[0])
        print_result(_as_json(_details(scheme)) if as_json else _details_text(scheme))
        return
    if family is not None and family not in FAMILIES:
        raise UsageError(f"there is no family {family!r}{nearest(family, FAMILIES)}")
    chosen = [
        scheme_class
        for scheme_class in SCHEMES
        if (family is None or family_of(scheme_class.name) == family) and _is_of_kind(scheme_class, wanted)
    ]
    _print_list(chosen, as_json=as_json, everything=family is None and not wanted)


def _condition(text: str) -> tuple[str, frozenset[str]]:
    """`synchrony=async` as (column, values): the beginning of one value is enough.

    Raises:
        UsageError: the column is unknown, or has no such value.
    """
    column, _, value = (word.strip() for word in text.partition("="))
    if column not in COLUMNS:
        raise UsageError(f"--where {text!r}: write COLUMN=VALUE; the columns are {', '.join(COLUMNS)}")
    allowed, selected = COLUMNS[column], set()
    for word in value.split(HYBRID):
        meant = (
            [word]
            if word in allowed
            else [candidate for candidate in allowed if word and candidate.startswith(word)]
        )
        if len(meant) != 1:
            raise UsageError(f"--where {text!r}: values of {column} are {', '.join(allowed)}")
        selected.add(meant[0])
    return column, frozenset(selected)


def _is_of_kind(scheme: type[Scheme], wanted: list[tuple[str, frozenset[str]]]) -> bool:
    columns = _columns(scheme)
    return all(values <= set(columns[column].split(HYBRID)) for column, values in wanted)


def _columns(scheme: type[Scheme]) -> dict[str, str]:
    """The taxonomy; compression is what the scheme can take."""
    from perfscope.runners.compression.registry import kinds_of

    return scheme.axes.record((CompressionKind.NONE, *kinds_of(scheme.modifiers)))


def _print_list(chosen: list[type[Scheme]], *, as_json: bool, everything: bool) -> None:
    if as_json:
        document = {
            "schemes": [_details(scheme_class) for scheme_class in chosen],
            "modifiers": [{"name": entry_name, "summary": text} for entry_name, text in _modifiers()],
            "models": [{"name": entry_name, "summary": text} for entry_name, text in _models()],
        }
        print_result(_as_json(document))
        return
    if not chosen:
        print_result("No scheme is of this kind.\n")
        return
    print_result(_list_text(chosen, everything=everything))


def _modifier_or_model(name: str) -> dict[str, Any] | None:
    """All about a modifier (with or without + and number) or a model; None: it is neither."""
    from perfscope.runners.compression.registry import COMPRESSIONS
    from perfscope.runners.schemes.registry import SCHEMES

    bare = name.strip().lstrip("+").partition("(")[0]
    summary = dict(_modifiers()).get(f"+{bare}")
    if summary is not None:
        details = {"name": f"+{bare}", "kind": "modifier", "summary": summary}
        details |= {
            "sends": next(
                (compression.volume for compression in COMPRESSIONS if compression.name == bare), ""
            ),
            "holds": next(
                (compression.criterion for compression in COMPRESSIONS if compression.name == bare), ""
            ),
            "source": next(
                (compression.source for compression in COMPRESSIONS if compression.name == bare), ""
            ),
            "for": ", ".join(scheme_class.name for scheme_class in SCHEMES if bare in scheme_class.modifiers),
        }
        return details
    summary = dict(_models()).get(name)
    return None if summary is None else _model_details(name, summary)


def _model_details(name: str, summary: str) -> dict[str, Any]:
    from perfscope.runners.config import BenchConfig
    from perfscope.runners.models.registry import find_model
    from perfscope.runners.planning import describe_model

    info = find_model(name)
    classic = BenchConfig(
        scheme="serial", model=name, input_shape=info.classic_input, num_classes=info.classic_classes
    )
    shape, default = describe_model(classic), info.default_input or BenchConfig(scheme="serial").input_shape
    size = "x".join(map(str, info.classic_input))
    return {
        "name": name,
        "kind": "model",
        "summary": summary,
        "parameters": f"{shape.num_params:,} at its own input {size}, {info.classic_classes:,} classes",
        "FLOPs": f"{shape.flops():,} for a forward pass of one sample (2 per multiply-add)",
        "activations": f"{4 * shape.activations:,} bytes of one sample leave its layers in float32",
        "learning rate": f"{info.learning_rate:g} unless --lr says otherwise",
        "use": f"--model {name}; any --input ({info.input}), {'x'.join(map(str, default))} without",
    }


def _other_text(details: dict[str, Any]) -> str:
    rows = [(key, text) for key, text in details.items() if key not in ("name", "kind", "summary") and text]
    return _facts_text(f"{details['name']}: {details['summary']}", rows)


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=1, ensure_ascii=False) + "\n"


def _details(scheme: type[Scheme]) -> dict[str, Any]:
    return {
        "name": scheme.name,
        "family": family_of(scheme.name),
        "summary": scheme.summary,
        "rule": scheme.rule,
        "axes": _columns(scheme),
        "splits": list(map(str, scheme.splits)),
        "volume": scheme.volume,
        "equals_serial": scheme.equals_serial,
        "criterion": scheme.criterion,
        "deterministic": scheme.deterministic,
        "one_host": scheme.one_host,
        "modifiers": sorted(scheme.modifiers),
        "backends": list(scheme.backends),
        "source": scheme.source,
    }


def _list_text(schemes: list[type[Scheme]], *, everything: bool) -> str:
    lines: list[str] = []
    width = max((len(scheme_class.name) for scheme_class in schemes), default=0)
    for family, title in FAMILIES.items():
        members = [scheme_class for scheme_class in schemes if family_of(scheme_class.name) == family]
        if members:
            lines.append(title)
            for scheme_class in members:
                lines += _entry(scheme_class.name, scheme_class.summary, width)
            lines.append("")
    if everything:
        for title, rows in (
            ("Modifiers, SCHEME+NAME; with a number in quotes: 'dp.ddp+topk(0.01)'", _modifiers()),
            ("Models", _models()),
        ):
            if rows:
                wide = max(len(name) for name, _ in rows)
                lines += [
                    *textwrap.wrap(title, _columns_wide()),
                    *(line for name, text in rows for line in _entry(name, text, wide)),
                    "",
                ]
    lines.append("All about one: perfscope bench list NAME")
    return "\n".join(lines) + "\n"


def _details_text(scheme: type[Scheme]) -> str:
    from perfscope.runners.catalogue.scheme_words import scheme_facts

    return _facts_text(f"{scheme.name}: {scheme.summary}", scheme_facts(scheme))


def _facts_text(title: str, facts: list[tuple[str, str]]) -> str:
    lines = [*textwrap.wrap(title, _columns_wide()), ""]
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        lines += _entry(name, text, width)
    return "\n".join(lines) + "\n"


def _columns_wide() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 120)


def _entry(name: str, text: str, width: int) -> list[str]:
    """A name and its text, which continues below itself."""
    start, below = f"  {name:{width}}  ", " " * (width + 4)
    return click.wrap_text(
        text, width=_columns_wide(), initial_indent=start, subsequent_indent=below
    ).splitlines()


def _modifiers() -> list[tuple[str, str]]:
    from perfscope.runners.catalogue.scheme_words import modifier_lines

    return modifier_lines()


def _models() -> list[tuple[str, str]]:
    from perfscope.runners.models.catalogue import MODELS

    return [(model.name, model.summary) for model in MODELS]
