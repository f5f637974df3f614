"""Where a check's settings come from: perfscope.toml or pyproject.toml, then the command line.

Whatever is wrong is one line that names the file, the key, and what would be right. docs/ci.md lists every
key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from perfscope.errors import UsageError
from perfscope.gate.looks import fewest_pairs
from perfscope.gate.metrics import DECIDES, METRICS, SEVERITIES, Direction, Severity
from perfscope.gate.records import Fingerprint
from perfscope.gate.settings import Settings
from perfscope.units import parse_ratio

OWN_FILE, PROJECT_FILE = "perfscope.toml", "pyproject.toml"
SHORT, LONG = "check", "tool.perfscope.check"
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
LARGEST_THRESHOLD = 10.0
METRIC_KEYS = ("direction", "threshold", "severity")
_ALLOWABLE = tuple(one.name for one in fields(Fingerprint))
_LONGEST_SHOWN = 60

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One value that somebody wrote, and where: all that an error has to name."""

    where: str
    value: object

    def refuse(self, wanted: str, choices: Collection[str] = ()) -> UsageError:
        return UsageError(
            f"{self.where}: must be {wanted}, not {_shown(self.value)}{_meant(self.value, choices)}"
        )


def load_settings(folder: Path, file: Path | None = None) -> Settings:
    """The settings of the project that `folder` is in.

    The nearest of `folder` and the folders above it whose perfscope.toml has [check] (or
    [tool.perfscope.check]), or whose pyproject.toml has [tool.perfscope.check], counts alone; perfscope.toml
    goes before its neighbour. Nothing above the repository's root is looked at. Paths in the file are
    relative to it.

    Args:
        file: read this one and no other.

    Returns:
        The defaults where no file says anything.

    Raises:
        UsageError: a file cannot be read, or says something that cannot be; one line with file and key.
    """
    if file is not None:
        found = _table_of(file, is_required=True)
        return _settings(file, *found) if found else Settings()
    for candidate in _candidates(folder):
        found = _table_of(candidate, is_required=False)
        if found is not None:
            return _settings(candidate, *found)
    return Settings()


def with_overrides(
    settings: Settings,
    *,
    pairs: int | None = None,
    threshold: float | str | None = None,
    alpha: float | None = None,
    name: str | None = None,
    metric_options: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> Settings:
    """`settings` with what the command line says on top.

    Args:
        threshold: of the metric that decides, "5%" or a share.
        metric_options: words ID=SEVERITY, ID=THRESHOLD or ID=SEVERITY:THRESHOLD; the last of a metric counts.
        allow: fields of the fingerprint, beside those that the settings allow.

    Raises:
        UsageError: one line with the option and what it may be.
    """
    changes: dict[str, object] = {}
    for key, value in (("pairs", pairs), ("alpha", alpha), ("name", name)):
        if value is not None:
            changes[key] = _KEYS[key](_Asked(f"--{key}", value))
    if allow:
        more = _allow(_Asked("--allow", list(allow)))
        changes["allow"] = tuple(dict.fromkeys((*settings.allow, *more)))
    metrics = dict(settings.metrics)
    if threshold is not None:
        share = _threshold(_Asked("--threshold", threshold))
        metrics[DECIDES] = replace(metrics[DECIDES], threshold=share)
    for word in metric_options:
        id_, changed = _metric_word(word)
        if threshold is not None and id_ == DECIDES and "threshold" in changed:
            raise UsageError(
                f"--threshold and --metric {word} both set the threshold of {DECIDES}; leave one out"
            )
        metrics[id_] = replace(metrics[id_], **changed)
    made = replace(settings, **cast(Any, changes), metrics=metrics)
    if pairs is not None or alpha is not None:
        _require_reachable("--pairs" if pairs is not None else "--alpha", made)
    if metric_options:
        _require_deciding("--metric", made)
    return made


def _candidates(folder: Path) -> Iterator[Path]:
    here = folder.resolve()
    for place in (here, *here.parents):
        yield place / OWN_FILE
        yield place / PROJECT_FILE
        try:
            if (place / ".git").exists():  # a file in worktrees and submodules
                return
        except OSError:
            return  # a folder that may not be searched: nothing above it is this project's


def _table_of(file: Path, *, is_required: bool) -> tuple[str, Table] | None:
    """(dotted name, content) of the file's table for `perfscope check`; None where it has none."""
    document = _parsed(file, is_required)
    if document is None:
        return None
    shown = _named(file)
    found: dict[str, object] = {}
    if file.name != PROJECT_FILE:  # everything in it is ours, so nothing in it can be somebody else's
        _only_known(shown, "", document, (SHORT, "tool"))
        if SHORT in document:
            found[SHORT] = document[SHORT]
    tool = document.get("tool")
    own = tool.get("perfscope") if isinstance(tool, Mapping) else None
    if own is not None:
        inside = _table(_Asked(f"{shown}: tool.perfscope", own))
        _only_known(shown, "tool.perfscope", inside, (SHORT,))
        if SHORT in inside:
            found[LONG] = inside[SHORT]
    if len(found) > 1:
        raise UsageError(f"{shown}: has both [{SHORT}] and [{LONG}]; keep one of them")
    for name, content in found.items():
        return name, _table(_Asked(f"{shown}: {name}", content))
    if is_required:
        wanted = f"[{LONG}]" if file.name == PROJECT_FILE else f"[{SHORT}] or [{LONG}]"
        raise UsageError(f"{shown}: has no table {wanted}")
    return None


def _parsed(file: Path, is_required: bool) -> Table | None:
    """The file's content; None where there is no such file and none is required."""
    shown = _named(file)
    content = b""
    try:
        content = file.read_bytes()
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        if not is_required and isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return None
        raise UsageError(f"{shown}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown}: is not TOML: line {line} is not UTF-8") from error
    except ValueError as error:  # tomllib.TOMLDecodeError, or int() of thousands of digits
        end = f"at line {len(content.splitlines())}, the end of the file"
        said = " ".join(str(error).split()).replace("at end of document", end)
        raise UsageError(f"{shown}: is not TOML: {said}") from error
    except RecursionError as error:
        raise UsageError(f"{shown}: is not TOML that can be read: nested too deeply") from error


def _settings(file: Path, prefix: str, table: Table) -> Settings:
    shown = _named(file)
    _only_known(shown, prefix, table, _KEYS)
    values = {
        key: read(_Asked(f"{shown}: {prefix}.{key}", table[key]))
        for key, read in _KEYS.items()
        if key in table
    }
    metrics = dict(METRICS)
    for id_, changed in cast(Mapping[str, Mapping[str, Any]], values.pop("metrics", {})).items():
        metrics[id_] = replace(metrics[id_], **changed)
        if id_ == DECIDES and "threshold" in changed and "threshold" in values:
            raise UsageError(
                f"{shown}: {prefix}.threshold and {prefix}.metrics.{DECIDES}.threshold are the same;"
                " keep one of them"
            )
    if "threshold" in values:
        metrics[DECIDES] = replace(metrics[DECIDES], threshold=cast(float, values.pop("threshold")))
    for key in ("baseline", "history"):
        if key in values:
            values[key] = file.absolute().parent / cast(Path, values[key])
    settings = Settings(**cast(Any, values), metrics=metrics, source=file)
    if settings.pairs < settings.fewest:
        wanted = f"must be at least {prefix}.fewest, which is {settings.fewest}"
        raise UsageError(
            f"{shown}: {prefix}.pairs: {wanted}, or nothing is ever judged; not {settings.pairs}"
        )
    if settings.most_pairs is not None and settings.most_pairs < settings.pairs:
        raise UsageError(
            f"{shown}: {prefix}.most_pairs: must be at least {prefix}.pairs, which is {settings.pairs};"
            f" not {settings.most_pairs}"
        )
    _require_reachable(f"{shown}: {prefix}.pairs", settings)
    _require_deciding(f"{shown}: {prefix}.metrics", settings)
    return settings


def _require_reachable(where: str, settings: Settings) -> None:
    """Refuse a check that could not fail: n pairs that all got worse have p = 2^-n, and less there is not.

    Fewer pairs than `fewest` pass here: asked for once, by hand, they are inconclusive, and said to be.
    """
    smallest = 0.5**settings.pairs
    if settings.pairs >= settings.fewest and smallest >= settings.alpha:
        needed = fewest_pairs(settings.alpha)
        raise UsageError(
            f"{where}: {settings.pairs} pairs cannot prove anything at alpha {settings.alpha:g} (their"
            f" smallest p is {smallest:.2g}); use {needed} pairs or more, or a larger alpha"
        )


def _require_deciding(where: str, settings: Settings) -> None:
    if not any(one.severity == "error" for one in settings.metrics.values()):
        raise UsageError(
            f'{where}: no metric has severity "error", so this check could never fail;'
            f" give it to one, such as {DECIDES}"
        )


# -- single values ----


def _whole(least: int, most: int) -> Callable[[_Asked], int]:
    def read(asked: _Asked) -> int:
        value = asked.value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise asked.refuse(f"a whole number from {least} to {most}")
        return value

    return read


def _yes_or_no(asked: _Asked) -> bool:
    if not isinstance(asked.value, bool):
        raise asked.refuse("true or false")
    return asked.value


def _alpha(asked: _Asked) -> float:
    value = asked.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 0.5:
        raise asked.refuse("a number above 0 and at most 0.5")
    return float(value)


def _threshold(asked: _Asked) -> float:
    """A share from "5%", "5 %", 0.05 or "0.05".

    A bare number must be below 1: who writes 5 means 5 %, not five times as long, and a gate that took it at
    its word would never fail again.
    """
    bare = _number(asked.value)
    if bare is not None and 1 <= bare <= 100 * LARGEST_THRESHOLD:
        said = str(asked.value).strip()
        raise asked.refuse(f'a share: "{said}%" for {said} per cent, or a number below 1')
    share = bare if bare is not None else _per_cent(asked.value)
    if share is None or not 0 < share <= LARGEST_THRESHOLD:
        most = f"{100 * LARGEST_THRESHOLD:.0f} %"
        raise asked.refuse(f'a share such as "5%" or 0.05, above 0 and at most {most}')
    return share


def _number(value: object) -> float | None:
    """A number as it is or in text, without a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _per_cent(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_ratio(value)
    except ValueError:
        stripped = value.strip()  # no number, or more than 100 %, which a threshold may be
    more = _number(stripped[:-1]) if stripped.endswith("%") else None
    return None if more is None else more / 100


def _name(asked: _Asked) -> str:
    value = asked.value
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > 200:
        raise asked.refuse("a name of 1 to 200 printable characters")
    return value


def _path(asked: _Asked) -> Path:
    value = asked.value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise asked.refuse("the path of a file")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise asked.refuse("the path of a file, and nobody here has that home directory") from None


def _allow(asked: _Asked) -> tuple[str, ...]:
    values = asked.value
    if not isinstance(values, list):
        raise asked.refuse(f"a list of {', '.join(_ALLOWABLE)}")
    for value in values:
        if value not in _ALLOWABLE:
            raise _Asked(asked.where, value).refuse(f"of {', '.join(_ALLOWABLE)}", _ALLOWABLE)
    return tuple(dict.fromkeys(values))


def _choice(asked: _Asked, choices: Sequence[str]) -> str:
    if not isinstance(asked.value, str) or asked.value not in choices:
        raise asked.refuse(f"one of {', '.join(choices)}", choices)
    return asked.value


def _metrics(asked: _Asked) -> dict[str, dict[str, object]]:
    """id -> what of `Metric` is changed, by its attribute."""
    found: dict[str, dict[str, object]] = {}
    for id_, content in _table(asked).items():
        where = f"{asked.where}.{id_ if id_.isprintable() else ascii(id_)}"
        if id_ not in METRICS:
            raise UsageError(
                f"{where}: there is no such metric{_meant(id_, METRICS)}; there are {', '.join(METRICS)}"
            )
        if not isinstance(content, Mapping):
            raise _Asked(where, content).refuse('a table such as { severity = "error", threshold = "5%" }')
        for key in content:
            if key not in METRIC_KEYS:
                raise _unknown(where, str(key), METRIC_KEYS)
        found[id_] = _metric_changes(where, cast(Table, content))
    return found


def _metric_changes(where: str, table: Table) -> dict[str, object]:
    changed: dict[str, object] = {}
    if "direction" in table:
        changed["better"] = _choice(_Asked(f"{where}.direction", table["direction"]), DIRECTIONS)
    if "threshold" in table:
        changed["threshold"] = _threshold(_Asked(f"{where}.threshold", table["threshold"]))
    if "severity" in table:
        changed["severity"] = _choice(_Asked(f"{where}.severity", table["severity"]), SEVERITIES)
    return changed


def _metric_word(word: str) -> tuple[str, dict[str, Any]]:
    """`peak_memory=error:15%` -> its id and what of `Metric` it changes."""
    where = f"--metric {word if word.isprintable() else _shown(word)}"
    id_, equals, said = word.partition("=")
    if not equals:
        raise UsageError(
            f"{where}: must be ID=SEVERITY, ID=THRESHOLD or ID=SEVERITY:THRESHOLD, as in {DECIDES}=8%"
        )
    if id_ not in METRICS:
        raise UsageError(
            f"{where}: there is no such metric{_meant(id_, METRICS)}; there are {', '.join(METRICS)}"
        )
    first, colon, second = said.partition(":")
    if colon:
        severity = cast(Severity, _choice(_Asked(where, first), SEVERITIES))
        return id_, {"severity": severity, "threshold": _threshold(_Asked(where, second))}
    if first in SEVERITIES:
        return id_, {"severity": first}
    if not any(character.isdigit() for character in first):
        raise _Asked(where, first).refuse(
            f"one of {', '.join(SEVERITIES)} or a threshold such as 8%", SEVERITIES
        )
    return id_, {"threshold": _threshold(_Asked(where, first))}


_KEYS: Mapping[str, Callable[[_Asked], object]] = {
    "name": _name,
    "pairs": _whole(1, 200),
    "most_pairs": _whole(1, 400),
    "threshold": _threshold,
    "alpha": _alpha,
    "fewest": _whole(2, 1000),
    "fewest_steps": _whole(2, 1_000_000),
    "repeats": _whole(0, 1000),
    "early_stop": _yes_or_no,
    "allow": _allow,
    "baseline": _path,
    "history": _path,
    "metrics": _metrics,
}
KEYS = tuple(_KEYS)


# -- words of errors ----


def _table(asked: _Asked) -> Table:
    if not isinstance(asked.value, Mapping):
        raise asked.refuse("a table")
    return cast(Table, asked.value)


def _only_known(shown: str, prefix: str, table: Table, known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            raise _unknown(f"{shown}: {prefix}" if prefix else shown, key, known)


def _unknown(where: str, key: str, known: Collection[str]) -> UsageError:
    return UsageError(f"{where}: has no key {_shown(key)}{_meant(key, known)}; it knows {', '.join(known)}")


def _meant(value: object, choices: Collection[str]) -> str:
    """(did you mean "…"?), where the value is nearly one of `choices`."""
    if not isinstance(value, str):
        return ""
    nearest = get_close_matches(value.strip().lower().replace("-", "_"), choices, n=1)
    return f' (did you mean "{nearest[0]}"?)' if nearest else ""


def _named(file: Path) -> str:
    """The file's path on one line, whatever it is called."""
    text = str(file)
    return text if text.isprintable() else ascii(text)


def _shown(value: object) -> str:
    """What was written, short and on one line, as TOML writes it where that is simple."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value if value.isprintable() else ascii(value)[1:-1]
        text = f'"{text}"'
    elif isinstance(value, Mapping):
        return "a table"
    elif isinstance(value, list):
        return "a list"
    elif isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"  # str() refuses the largest
    else:
        text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
