"""Baselines and histories: a figure that was changed after it was written is noticed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.gate.store import BaselineError, open_store
from perfscope.gate.store.shareable import CHECKSUM, decode_run, encode_run, shareable
from tests.support.gate_store_runs import numbered


def made(path: Path) -> Path:
    open_store(path, create=True).put("cnn", [numbered(1), numbered(2)])
    return path


def test_every_digit_of_a_line_is_covered() -> None:
    run = shareable(numbered(1))
    line = encode_run(run)
    digits = [at for at, letter in enumerate(line) if letter.isdigit()]
    assert len(digits) > 500
    num_same = 0
    for at in digits:
        changed = line[:at] + str((int(line[at]) + 1) % 10) + line[at + 1 :]
        try:
            found = decode_run(changed)
        except ValueError:
            continue
        assert found == run  # the last digits of a float may mean the same number
        num_same += 1
    assert num_same < len(digits) / 10


def test_a_formatted_line_is_the_same_run() -> None:
    run = shareable(numbered(1))
    line = encode_run(run)
    assert decode_run(json.dumps(json.loads(line), indent=4)) == run
    assert decode_run(line.encode()) == run


def test_a_line_of_an_older_perfscope_has_no_checksum() -> None:
    run = shareable(numbered(1))
    document = json.loads(encode_run(run))
    del document[CHECKSUM]
    assert decode_run(json.dumps(document, separators=(",", ":"))) == run
    assert decode_run(json.dumps(document, indent=1)) == run


def test_a_changed_baseline_is_one_line(tmp_path: Path) -> None:
    path = made(tmp_path / "b.json")
    text = path.read_text()
    at = text.index('"step_p10":') + len('"step_p10":')
    path.write_text(text[:at] + "1" + text[at:])
    with pytest.raises(BaselineError, match=r"b\.json is damaged \(a run is not what was written"):
        open_store(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.entries(),
        lambda store: store.runs("cnn", numbered(1).fingerprint.key),
        lambda store: store.find("cnn", shareable(numbered(1)).fingerprint),
    ],
)
def test_a_changed_history_is_one_line(tmp_path: Path, read: Callable[..., object]) -> None:
    path = made(tmp_path / "h.sqlite")
    connection = sqlite3.connect(path)
    (figures,) = connection.execute("SELECT figures FROM runs").fetchone()
    at = figures.index('"step_p10":') + len('"step_p10":')
    connection.execute("UPDATE runs SET figures = ?", (figures[:at] + "1" + figures[at:],))
    connection.commit()
    connection.close()
    with pytest.raises(BaselineError, match=r"h\.sqlite is damaged \(a run is not what was written"):
        read(open_store(path))


def test_columns_beside_the_figures_decide_nothing(tmp_path: Path) -> None:
    path = made(tmp_path / "h.sqlite")
    before = open_store(path).entries()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE runs SET step_p10 = 1, start_unix_ns = 7, \"commit\" = 'x'")
    connection.commit()
    connection.close()
    assert open_store(path).entries() == before


def test_a_run_under_another_fingerprint_is_damage(tmp_path: Path) -> None:
    path = made(tmp_path / "h.sqlite")
    connection = sqlite3.connect(path)
    (text,) = connection.execute("SELECT fingerprint FROM benchmarks").fetchone()
    document = json.loads(text)
    name = next(key for key, value in document.items() if isinstance(value, str))
    connection.execute("UPDATE benchmarks SET fingerprint = ?", (json.dumps({**document, name: "other"}),))
    connection.commit()
    connection.close()
    with pytest.raises(BaselineError, match="fingerprint that is not its own"):
        open_store(path).entries()
