"""What a tracker is given, without the trackers: see tests/unit/cli/test_export_trackers.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from perfscope.errors import PerfscopeError
from perfscope.reports.trackers import TrackedRun, _tensorboard, write_to_tracker


class Writer:
    def __init__(self, logdir: str) -> None:
        Path(logdir).mkdir(parents=True)

    def add_text(self, tag: str, text: str) -> None:
        assert tag == "report"

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", ["../../escaped", "/absolute", "..", ".hidden", "a/b", ""])
def test_a_runs_name_leads_to_no_other_folder(tmp_path: Path, name: str) -> None:
    run = TrackedRun(name=name, series={}, figures={}, texts={}, html=b"<p>", text="report")
    target = tmp_path / "kept" / "tensorboard"
    _tensorboard(SimpleNamespace(SummaryWriter=Writer), run, str(target))
    (report,) = tmp_path.rglob("report.html")
    assert report.parent.parent == target


def test_a_folder_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mlruns").symlink_to(tmp_path / "elsewhere")
    run = TrackedRun(name="run", series={}, figures={}, texts={}, html=b"", text="")
    with pytest.raises(PerfscopeError, match="is a link"):
        write_to_tracker("mlflow", run, str(tmp_path / "mlruns"))
    assert not list((tmp_path / "elsewhere").iterdir())
