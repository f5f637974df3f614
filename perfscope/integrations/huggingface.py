"""A callback for Hugging Face's Trainer: labels, samples, and training and epochs as phases.

perfscope records trainings of the Trainer without it, its own methods as phases included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from perfscope.integrations import OpenPhases, tell, tell_labels


class PerfscopeCallback(TrainerCallback):
    """Tells `perfscope run` what it cannot see; does nothing without it, and never changes a training.

    Phases: ``train``, and ``epoch`` within it.

    Args:
        labels: of the run, kept in run.json (``{"dataset": "c4"}``); those of `--label` win.
        samples: gives the number of samples of each micro-batch of the update that begins, from the Trainer's
            arguments and state, where perfscope counts them wrongly; None = perfscope counts them.
    """

    def __init__(
        self, labels: Mapping[str, Any] | None = None, samples: Callable[[Any, Any], int] | None = None
    ) -> None:
        self._labels = dict(labels or {})
        self._samples = samples
        self._phases = OpenPhases()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        self._phases.end_all()  # of a training that an error has left
        tell_labels(self._labels)
        self._phases.begin("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        tell("samples", None)
        self._phases.end("train")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        self._phases.begin("epoch")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        self._phases.end("epoch")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See TrainerCallback."""
        if self._samples is not None:
            tell("samples", self._samples(args, state))
