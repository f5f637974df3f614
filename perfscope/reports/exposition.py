"""OpenMetrics text: families of samples. https://prometheus.io/docs/specs/om/open_metrics_spec/"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Sample = tuple[dict[str, str], float]


def family(
    name: str, type_: str, unit: str, help_: str, samples: Sequence[Sample], suffix: str = ""
) -> Iterator[str]:
    """A family with its samples, line by line; nothing where there are none.

    Args:
        name: whole, with the unit at its end.
        suffix: of the samples' names, such as ``_info``.
    """
    if not samples:
        return
    yield f"# TYPE {name} {type_}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {escaped(help_)}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        yield f"{name}{suffix}{{{inside}}} {_number(value)}"


def escaped(text: str) -> str:
    """A label value, or help text."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
