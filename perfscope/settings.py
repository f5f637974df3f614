"""Settings as users write them: TOML files and options as typed tables, and one line about what cannot be.

A table is a dataclass. What a key may hold is its annotation: the type, `Literal` for choices,
`msgspec.Meta` for ranges; `Meta(description=...)` says what is wanted where the type does not. A class of our
own has a classmethod `parse`, whose ValueError says what is wanted. TOML has no null: None = left out.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from perfscope.errors import UsageError

_T = TypeVar("_T")
_LONGEST_SHOWN = 60
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list"}

Convert = Callable[[Any, Any], Any]  # (value, type) -> the value as that type; raises ValidationError
Problem = tuple[str, str]  # dotted key, what is wrong with it


def read_toml(file: Path, error: type[UsageError] = UsageError) -> dict[str, Any]:
    """The file's content.

    Raises:
        UsageError: as `error`; it cannot be read, or is not TOML: one line that names the file.
    """
    if sys.version_info >= (3, 11):  # here: ranks of bench runs load this module and read no file
        import tomllib
    else:
        import tomli as tomllib
    content = b""
    try:
        content = file.read_bytes()
        return tomllib.loads(content.decode("utf-8"))
    except OSError as cause:
        raise error(f"{one_line(file)}: cannot be read: {cause.strerror or cause}") from cause
    except UnicodeDecodeError as cause:
        line = content.count(b"\n", 0, cause.start) + 1
        raise error(f"{one_line(file)}: is not TOML: line {line} is not UTF-8") from cause
    except ValueError as cause:  # tomllib.TOMLDecodeError, or int() of thousands of digits
        end = f"at line {len(content.splitlines())}, the end of the file"
        problem_text = " ".join(str(cause).split()).replace("at end of document", end)
        raise error(f"{one_line(file)}: is not TOML: {problem_text}") from cause
    except RecursionError as cause:
        raise error(f"{one_line(file)}: is not TOML that can be read: nested too deeply") from cause


def converted(
    value: object,
    kind: type[_T],
    *,
    file: object = "",
    prefix: str = "",
    spelled: Mapping[str, str] | None = None,
    strict: bool = True,
    error: type[UsageError] = UsageError,
) -> _T:
    """`value`, a table as it was read, as the dataclass `kind`.

    Args:
        file: named in messages, if it comes from one.
        prefix: what stands before a key in messages: "check.", "--".
        spelled: fields that messages call otherwise.
        strict: refuses numbers in quotes.

    Raises:
        UsageError: as `error`; one line with every key that is wrong, its value and what it may be.
    """

    def convert(value: Any, hint: Any) -> Any:
        return msgspec.convert(value, hint, strict=strict, dec_hook=_parsed)

    problems = []
    for key, text in _problems(value, kind, "", convert):
        named = (prefix + (spelled or {}).get(key, key)).rstrip(".")
        problems.append(f"{named}: {text}" if named else text)
    if problems:
        raise error(f"{one_line(file)}: {'; '.join(problems)}" if file else "; ".join(problems))
    result: _T = convert(value, kind)
    return result


def given(table: Any) -> dict[str, Any]:
    """What was not left out of a table, by key."""
    return {item.name: value for item in fields(table) if (value := getattr(table, item.name)) is not None}


def meant(value: object, allowed: Collection[str]) -> str:
    """(did you mean "…"?), where the value is nearly one of `allowed`; else ""."""
    if not isinstance(value, str):
        return ""
    near = _close_match(value.strip().lower().replace("-", "_"), allowed)
    return f' (did you mean "{near}"?)' if near else ""


def _close_match(word: str, allowed: Collection[str], cutoff: float = 0.6) -> str:
    from difflib import get_close_matches  # only a misspelled word needs it

    return next(iter(get_close_matches(word, allowed, n=1, cutoff=cutoff)), "")


def nearest(word: str, allowed: Collection[str]) -> str:
    """`; did you mean 'batch'?`, or the list of what there is."""
    near = _close_match(word, allowed, 0.5)
    return f"; did you mean {near!r}?" if near else f"; there are {', '.join(allowed)}"


def one_line(name: object) -> str:
    """The name of a file or a key on one line, whatever it is."""
    text = str(name)
    return text if text.isprintable() else ascii(text)


def shown(value: object) -> str:
    """What was written, short and on one line, as TOML writes it where that is simple."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value) if isinstance(value, Mapping | list | tuple) else one_line(value)
    except ValueError:
        return "a number of thousands of digits"  # str() refuses those
    if isinstance(value, str):
        text = '"' + (value if value.isprintable() else ascii(value)[1:-1]) + '"'
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def unknown_key(key: str, allowed: Collection[str]) -> str:
    """What is wrong with a table that holds `key`."""
    return f"has no key {shown(key)}{meant(key, allowed)}; it knows {', '.join(allowed)}"


def _parsed(kind: Any, value: object) -> Any:
    """For msgspec: a value of one of our own classes, or a path."""
    if isinstance(value, kind):
        return value
    return _path(value) if kind is Path else kind.parse(value)


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("the path of a file")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("the path of a file, and no user here has that home directory") from None


def _problems(value: object, hint: Any, key: str, convert: Convert) -> Iterator[Problem]:
    """What of `value` is no `hint`: the keys inside of tables and lists, else the value itself."""
    kind, _ = _bare(hint)
    inside: list[Problem] = []
    if is_dataclass(kind) and isinstance(value, Mapping):
        inside = list(_table_problems(value, kind, key, convert))
    elif get_origin(kind) is dict and isinstance(value, Mapping):
        for name, item in value.items():
            inside += _problems(item, get_args(kind)[1], f"{key}.{one_line(name)}", convert)
    elif get_origin(kind) is tuple and isinstance(value, list):
        for number, item in enumerate(value, start=1):
            which = f" {number}" if isinstance(item, Mapping) and len(value) > 1 else ""
            inside += _problems(item, get_args(kind)[0], key + which, convert)
    if inside:
        yield from inside
        return
    try:
        convert(value, hint)
    except msgspec.ValidationError as error:
        wanted = str(error.__cause__) if isinstance(error.__cause__, ValueError) else _wanted(hint)
        near = meant(value, _choices(hint))
        if get_origin(kind) is tuple and isinstance(value, str | int | float):
            near = f"; write [{shown(value)}]"
        yield key, f"must be {wanted}, not {shown(value)}{near}"


def _table_problems(value: Mapping[str, object], kind: Any, key: str, convert: Convert) -> Iterator[Problem]:
    hints = get_type_hints(kind, include_extras=True)
    for name in value:
        if name not in hints:
            yield key, unknown_key(name, tuple(hints))
    for item in fields(kind):
        if item.name in value:
            yield from _problems(
                value[item.name], hints[item.name], f"{key}.{item.name}".lstrip("."), convert
            )
        elif item.default is item.default_factory is MISSING:
            yield key, f'needs "{item.name}": {_wanted(hints[item.name])}'


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type without `| None` and annotations, and these annotations."""
    if get_origin(hint) in (Union, types.UnionType):
        kept = [argument for argument in get_args(hint) if argument is not type(None)]
        return _bare(kept[0]) if len(kept) == 1 else (hint, ())
    if get_origin(hint) is Annotated:
        bare, inner = _bare(get_args(hint)[0])
        return bare, (*get_args(hint)[1:], *inner)
    return hint, ()


def _choices(hint: Any) -> tuple[str, ...]:
    kind, _ = _bare(hint)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _wanted(hint: Any) -> str:
    """What may stand there, in words: "a whole number from 1 to 200"."""
    kind, annotations = _bare(hint)
    for meta in annotations:
        if meta.description:
            return str(meta.description)
    if choices := _choices(hint):
        return f"one of {', '.join(choices)}"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_wanted, get_args(kind)))
    wanted = _WORDS.get(get_origin(kind) or kind, "a table")
    return wanted + "".join(map(_range, annotations))


def _range(meta: msgspec.Meta) -> str:
    """` from 1 to 4,096`, ` above 0 and at most 0.5`, or "" where there is none."""
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:,} to {meta.le:,}"
    ends = {"above": meta.gt, "of at least": meta.ge, "below": meta.lt, "at most": meta.le}
    limits = [f"{word} {end:,}" for word, end in ends.items() if end is not None]
    return f" {' and '.join(limits)}" if limits else ""
