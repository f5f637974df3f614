"""A finished run in an experiment tracker: scalars over steps, figures, and the report as an artifact.

The trackers are optional packages, loaded when they are asked for.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.errors import PerfscopeError

_EXPERIMENT = "perfscope"
_BATCH = 500  # values that MLflow takes at once
_ARTIFACT = "report.html"
# Trackers report their own use and errors to their makers unless that is switched off.
_SILENT = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}


class TrackedRun(Struct, frozen=True, kw_only=True):
    """What a tracker is given.

    Attributes:
        series: name -> (step, Unix time in ms, value).
        figures: of the whole run; what is not known is not there.
        texts: facts of the run, such as its framework, and the verdict.
        html, text: the report.
    """

    name: str
    series: Mapping[str, tuple[tuple[int, int, float], ...]]
    figures: Mapping[str, float]
    texts: Mapping[str, str]
    html: bytes
    text: str


class Tracker(Struct, frozen=True, kw_only=True):
    """One tracker: the module to load, what to install for it, its folder, and how it is written."""

    name: str
    module: str
    package: str
    folder: str
    write: Callable[[Any, TrackedRun, str], str]


def write_to_tracker(name: str, run: TrackedRun, target: str) -> str:
    """Writes the run.

    Args:
        name: one of TRACKERS.
        target: a folder; for MLflow also the address of a server.

    Returns:
        Where it is, or what to do next: one line.

    Raises:
        PerfscopeError: the package is not installed, the tracker refuses, or the target is a link.
    """
    tracker = TRACKERS[name]
    if "://" not in target and Path(target).is_symlink():
        raise PerfscopeError(f"{target} is a link, which is not followed: name another folder with -o")
    os.environ.update(_SILENT)
    try:
        library = import_module(tracker.module)
    except ImportError as error:
        missing = error.name if error.name else tracker.module
        raise PerfscopeError(
            f"--to {name} needs {missing}: python -m pip install '{tracker.package}'"
        ) from None
    try:
        return tracker.write(library, run, target)
    except Exception as error:  # whatever a tracker raises: a server that is not there, a full disk
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise PerfscopeError(f"{name} did not take the run: {reason}") from error


def _mlflow(library: Any, run: TrackedRun, target: str) -> str:
    entities = import_module("mlflow.entities")
    uri = target if "://" in target else Path(target).resolve().as_uri()
    # MLflow 3 writes into a folder only if asked to; its other stores need a database library or a server.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    client = library.tracking.MlflowClient(tracking_uri=uri)
    existing = client.get_experiment_by_name(_EXPERIMENT)
    experiment = existing.experiment_id if existing else client.create_experiment(_EXPERIMENT)
    run_id = client.create_run(experiment, run_name=run.name).info.run_id
    for key, text in run.texts.items():
        client.set_tag(run_id, f"perfscope.{key}", text)
    now = max((row[1] for rows in run.series.values() for row in rows), default=0)
    metrics = [entities.Metric(name, value, now, 0) for name, value in run.figures.items()]
    metrics += [
        entities.Metric(name, value, at_ms, step)
        for name, rows in run.series.items()
        for step, at_ms, value in rows
    ]
    for first in range(0, len(metrics), _BATCH):
        client.log_batch(run_id, metrics=metrics[first : first + _BATCH])
    with _artifact(run) as path:
        client.log_artifact(run_id, str(path))
    client.set_terminated(run_id)
    return f"run {run_id} of experiment {_EXPERIMENT} in {uri}"


def _wandb(library: Any, run: TrackedRun, target: str) -> str:
    Path(target).mkdir(parents=True, exist_ok=True)
    settings = library.Settings(
        console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
    )
    kept = library.init(
        project=_EXPERIMENT,
        name=run.name,
        dir=target,
        mode="offline",
        config=dict(run.texts),
        settings=settings,
    )
    by_step: dict[int, dict[str, float]] = {}
    for name, rows in run.series.items():
        for step, _, value in rows:
            by_step.setdefault(step, {})[name] = value
    for step in sorted(by_step):
        kept.log(by_step[step], step=step)
    kept.summary.update(dict(run.figures))
    with _artifact(run) as path:
        artifact = library.Artifact("report", type="perfscope-report")
        artifact.add_file(str(path))
        kept.log_artifact(artifact)
        folder = Path(kept.dir).parent
        kept.finish()
    return f"{folder}; to upload it: wandb sync {folder}"


def _tensorboard(library: Any, run: TrackedRun, target: str) -> str:
    # The name is run.json's: it may be any text.
    folder = Path(target) / (re.sub(r"[^\w. -]+", "_", run.name).strip(". ")[:100] or "run")
    writer = library.SummaryWriter(logdir=str(folder))
    for name, rows in run.series.items():
        for step, at_ms, value in rows:
            writer.add_scalar(name, value, step, walltime=at_ms / 1000)
    for name, value in run.figures.items():
        writer.add_scalar(f"figures/{name}", value, 0)
    writer.add_text("report", "".join(f"    {line}\n" for line in run.text.splitlines()))
    writer.close()
    (folder / _ARTIFACT).write_bytes(run.html)
    return f"{folder}; to look at it: tensorboard --logdir {target}"


@contextmanager
def _artifact(run: TrackedRun) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        path = Path(folder) / _ARTIFACT
        path.write_bytes(run.html)
        yield path


TRACKERS = {
    tracker.name: tracker
    for tracker in (
        Tracker(
            name="mlflow",
            module="mlflow",
            package="mlflow-skinny>=2.10",
            folder="mlruns",
            write=_mlflow,
        ),
        Tracker(name="wandb", module="wandb", package="wandb>=0.17", folder="wandb", write=_wandb),
        Tracker(
            name="tensorboard",
            module="tensorboardX",
            package="tensorboardX>=2.6",
            folder="tensorboard",
            write=_tensorboard,
        ),
    )
}


def target_of(name: str, output: Path | None, run: Path) -> str:
    """Where a tracker's files go: as the user named it, else MLflow's variable, else a folder in the run."""
    if output is not None:
        return os.fspath(output)
    named = os.environ.get("MLFLOW_TRACKING_URI", "") if name == "mlflow" else ""
    return named or os.fspath(run / TRACKERS[name].folder)


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Those that are known."""
    return {
        name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)
    }
