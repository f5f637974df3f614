"""All marks around calls of torch's that a window has beside the layers': process groups, pipeline stages."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from .groups import GroupMarks
from .stages import StageMarks


class CallMarks:
    """Puts them in, and takes them out again.

    Args:
        new_mark: name -> context manager that puts a span into the trace.
        unseen: True while a compiler follows the code: nothing of ours may become part of it.
        failed: called with the first fault of each kind; after it that kind makes no mark any more.
    """

    def __init__(
        self,
        new_mark: Callable[[str], Any],
        unseen: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._groups = GroupMarks(new_mark, unseen, failed)
        self._stages = StageMarks(new_mark, unseen, failed)

    def install(self, roots: Sequence[Any] = ()) -> None:
        """From now on mark calls.

        Args:
            roots: the models, if known.
        """
        self._groups.install(roots)
        self._stages.install()

    def remove(self) -> None:
        """Everything as it was before."""
        self._groups.remove()
        self._stages.remove()
