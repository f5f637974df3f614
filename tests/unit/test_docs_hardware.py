"""docs/hardware.md names every source there is, and no figure that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import perfscope
from perfscope.collectors.registry import own_collectors
from perfscope.vocabulary.gpu import GPU_METRICS

TEXT = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
FIGURE = re.compile(
    r"`((?:context|cpu|fabric|gpu|interleave|job|local|mbm|neighbor|net|node|numa|other|pcie"
    r"|pressure|rank|rapl|tcp|thermal)_[a-z_]+[a-z])`"
)
COMPOSED = re.compile(r'f"([a-z_]*(?:\{[^}]+\}[a-z_]*)+)"')  # f"fabric_{way}_bytes"


def test_every_source_is_described() -> None:
    assert [one.name for one in own_collectors() if f"`{one.name}`" not in TEXT] == []


def test_every_figure_that_is_described_is_one_that_is_measured() -> None:
    package = Path(perfscope.__file__).parent
    vocabulary = (package / "vocabulary" / name for name in ("gpu.py", "memory.py"))
    files = [*(package / "collectors").rglob("*.py"), *vocabulary]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    patterns = [re.sub(r"\{[^}]+\}", "[a-z]+", text) for text in COMPOSED.findall(code) if "_" in text]
    named = set(FIGURE.findall(TEXT))
    assert len(named) > 50
    unknown = [name for name in sorted(named) if f'"{name}"' not in code]
    assert [name for name in unknown if not any(re.fullmatch(one, name) for one in patterns)] == []


def test_every_figure_of_gpus_is_described() -> None:
    assert [one.name for one in GPU_METRICS if f"`{one.name}`" not in TEXT] == []
