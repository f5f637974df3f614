"""`perfscope export --to`: the tracker's own reader finds the run's figures, offline."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).parents[2] / "data" / "traces" / "cpu_gloo_2ranks"
CUT = ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE", "WANDB_MODE")


def perfscope(*words: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *map(str, words)],
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if key not in CUT} | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an imported run named `run`."""
    folder = tmp_path_factory.mktemp("trackers")
    done = perfscope("import", TRACES, "-o", "run", "--name", "my run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(perfscope("report", "run", "--json", cwd=folder).stdout)
    return found


def test_mlflow_has_every_step_the_figures_and_the_report(
    folder: Path, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # for the reader here
    done = perfscope("export", "run", "--to", "mlflow", "-o", "mlruns", cwd=folder)
    assert done.returncode == 0, done.stderr
    tracking = importlib.import_module("mlflow.tracking")
    client = tracking.MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("perfscope")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "my run"
    assert run.data.metrics["step_median_ms"] == pytest.approx(report["step_ns"]["median"] / 1e6)
    history = client.get_metric_history(run.info.run_id, "step_ms")
    assert len({point.step for point in history}) == len(history) > 1
    assert [entry.path for entry in client.list_artifacts(run.info.run_id)] == ["report.html"]
    assert run.data.tags["perfscope.verdict"]


def test_wandb_is_written_offline(folder: Path, report: dict[str, Any]) -> None:
    pytest.importorskip("wandb")
    done = perfscope("export", "run", "--to", "wandb", "-o", "wandb-folder", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "wandb sync" in done.stdout
    (kept,) = (folder / "wandb-folder").rglob("*.wandb")
    data = kept.read_bytes()
    for name in ("step_ms", "step_slowest_rank_ms", "step_median_ms", "report.html"):
        assert name.encode() in data


def test_tensorboard_has_every_step_and_the_figures(folder: Path, report: dict[str, Any]) -> None:
    pytest.importorskip("tensorboardX")
    done = perfscope("export", "run", "--to", "tensorboard", "-o", "logs", cwd=folder)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "logs" / "my run").glob("events.out.tfevents.*")
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    values: dict[str, dict[int, float]] = {}
    data, at = path.read_bytes(), 0
    while at < len(data):  # records: length, its checksum, data, its checksum
        size = int.from_bytes(data[at : at + 8], "little")
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        at += size + 16
        for value in event.summary.value:
            values.setdefault(value.tag, {})[event.step] = value.simple_value
    assert len(values["step_ms"]) > 1
    told = report["step_ns"]["median"] / 1e6
    assert values["figures/step_median_ms"][0] == pytest.approx(told, rel=1e-5)
    assert (folder / "logs" / "my run" / "report.html").read_bytes().startswith(b"<!")


@pytest.mark.parametrize("tracker", ["mlflow", "wandb", "tensorboard"])
def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(folder: Path, tracker: str) -> None:
    shadows = folder / "shadows"
    for module in ("mlflow", "wandb", "tensorboardX"):
        (shadows / module).mkdir(parents=True, exist_ok=True)
        (shadows / module / "__init__.py").write_text(f"raise ImportError(name={module!r})")
    done = perfscope(
        "export",
        "run",
        "--to",
        tracker,
        cwd=folder,
        PYTHONPATH=str(shadows),
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "python -m pip install" in done.stderr


@pytest.mark.parametrize("words", [(), ("--to", "mlflow", "--format", "csv")])
def test_either_a_format_or_a_tracker_is_given(folder: Path, words: tuple[str, ...]) -> None:
    done = perfscope("export", "run", *words, cwd=folder)
    assert done.returncode == 2
    assert "either --format, or --to" in done.stderr


def test_a_tracker_that_refuses_gives_one_line(folder: Path) -> None:
    pytest.importorskip("tensorboardX")
    (folder / "file").write_text("mine")
    done = perfscope("export", "run", "--to", "tensorboard", "-o", "file", cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert (folder / "file").read_text() == "mine"
