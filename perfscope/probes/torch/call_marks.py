"""All marks around calls of torch's that a window has beside the layers'.

Process groups, pipeline stages, units of FSDP1, parameters and gradients.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ...vocabulary.figures import Figure
from ..process import Process
from .gradients import GradientMarks
from .groups import GroupMarks, failed_without_groups
from .layers import LayerMarks
from .stages import StageMarks
from .units import UnitMarks
from .wrapped_calls import WrappedCalls


class CallMarks:
    """Puts them in, and takes them out again.

    Args:
        new_mark: name -> context manager that puts a span into the trace.
        unseen: True while a compiler follows the code: nothing of ours may become part of it.
        failed: called with the first fault of each kind; after it that kind makes no mark any more.
        layers: the marks of layers.
        sees: see GroupMarks.
    """

    def __init__(
        self,
        new_mark: Callable[[str], Any],
        unseen: Callable[[], bool],
        failed: Callable[[Exception], None],
        layers: LayerMarks,
        sees: Callable[[str], bool],
    ) -> None:
        self._groups = GroupMarks(WrappedCalls(new_mark, unseen, failed_without_groups(failed)), sees)
        self._stages = StageMarks(WrappedCalls(new_mark, unseen, failed))
        self._units = UnitMarks(WrappedCalls(new_mark, unseen, failed), layers.name_of)
        self._gradients = GradientMarks(WrappedCalls(new_mark, unseen, failed), layers)

    def install(self, roots: Sequence[Any] = ()) -> None:
        """From now on mark calls.

        Args:
            roots: the models, if known.
        """
        self._groups.install(roots)
        self._stages.install()
        self._units.install()
        self._gradients.install(roots)

    def report(self, process: Process) -> None:
        """Name the communication that the windows so far do not show, if there was any."""
        counts = self._groups.num_unseen
        if not counts:
            return
        process.missing(
            Figure.EXPOSED_COMM,
            "exposed communication of other threads",
            "%s in the traced windows by other threads than the traced one; the traces do not show them, so "
            "no time of communication includes them"
            % ", ".join("%d calls of %s" % (count, name) for name, count in sorted(counts.items())),
            is_update=True,
        )

    def remove(self) -> None:
        """Everything as it was before: those that wrapped others' wraps first."""
        self._gradients.remove()
        self._units.remove()
        self._stages.remove()
        self._groups.remove()
