"""What the ranks of test_own_scheme.py run: the scheme that docs/bench.md shows, registered and trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.runners.config import BenchConfig
from perfscope.runners.schemes import registry
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.world import World
from tests.runners.dp_cases import train_all

GUIDE = Path(__file__).parents[2] / "docs" / "bench.md"


def shown_in_the_guide() -> str:
    """The one block of Python in docs/bench.md."""
    return GUIDE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]


def train_it(world: World, config: BenchConfig) -> dict[str, Any]:
    """As train_all, of the scheme in the guide."""
    names: dict[str, Any] = {}
    exec(compile(shown_in_the_guide(), str(GUIDE), "exec"), names)  # our own document
    own: type[Scheme] = names["ReduceBroadcast"]
    registry.SCHEMES = (*registry.SCHEMES, own)  # of this rank's process, which ends with the test
    return train_all(world, [config])
