"""A callback for Lightning: labels, samples and the parts of a trainer's work as phases.

perfscope records trainings of Lightning without it, the hooks as phases included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from perfscope.integrations import OpenPhases, tell, tell_labels


class PerfscopeCallback(Callback):
    """Tells `perfscope run` what it cannot see; does nothing without it, and never changes a training.

    Phases: ``fit``, ``sanity check``, ``validate``, ``test``, ``predict``.

    Args:
        labels: of the run, kept in run.json (``{"dataset": "imagenet"}``); those of `--label` win.
        samples: gives the number of samples of a training batch, where perfscope counts them wrongly; None =
            perfscope counts them.
    """

    def __init__(
        self, labels: Mapping[str, Any] | None = None, samples: Callable[[Any], int] | None = None
    ) -> None:
        super().__init__()
        self._labels = dict(labels or {})
        self._samples = samples
        self._phases = OpenPhases()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """See Callback."""
        tell_labels(self._labels)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """See Callback."""
        if self._samples is not None:
            tell("samples", self._samples(batch))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        tell("samples", None)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.begin("fit")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.end("fit")

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.begin("sanity check")

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.end("sanity check")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.begin("validate")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.end("validate")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.begin("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.end("test")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.begin("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """See Callback."""
        self._phases.end("predict")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """See Callback."""
        self._phases.end_all()
