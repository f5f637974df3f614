"""Another project on PyPI is called `perfscope` and installs a package of that name, too."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

from perfscope import __file__ as our_init

OTHER = "perfscope"  # ours is perfscope-hpc


def collision(installed: Iterable[Distribution] | None = None) -> str | None:
    """One line that says what to do, where another distribution installs files over this package.

    An editable install lists no files of the package, and so collides with nothing.
    """
    for distribution in distributions(name=OTHER) if installed is None else installed:
        places = [str(distribution.locate_file(file)) for file in distribution.files or []]
        if our_init in places:
            return (
                f"another distribution, {OTHER} {distribution.version}, installs files over this package: "
                f"pip uninstall {OTHER}, then pip install --force-reinstall --no-deps perfscope-hpc"
            )
    return None
