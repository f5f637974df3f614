"""Another project on PyPI is called `perfscope` and installs a package of that name, too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope import __file__ as our_init

if TYPE_CHECKING:
    from importlib.metadata import Distribution

OTHER = "perfscope"  # ours is perfscope-hpc


def collision_here() -> str | None:
    """`collision`, at the price of one look into the folder that the package is in."""
    beside = Path(our_init).parents[1].glob(f"{OTHER}-*.dist-info")
    return collision() if any(beside) else None


def collision(installed: Iterable[Distribution] | None = None) -> str | None:
    """One line that says what to do, where another distribution installs files over this package.

    An editable install lists no files of the package, and so collides with nothing.
    """
    from importlib.metadata import distributions

    for distribution in distributions(name=OTHER) if installed is None else installed:
        places = [str(distribution.locate_file(file)) for file in distribution.files or []]
        if our_init in places:
            return (
                f"another distribution, {OTHER} {distribution.version}, installs files over this package: "
                f"pip uninstall {OTHER}, then pip install --force-reinstall --no-deps perfscope-hpc"
            )
    return None
