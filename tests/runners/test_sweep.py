"""`perfscope bench sweep`: what a file asks for, in what order, what a study keeps, what it says."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from perfscope.runners.config import BenchError
from perfscope.runners.sweep.execution import How, command_of, last_error, option_text, run_order
from perfscope.runners.sweep.heading import trained_line
from perfscope.runners.sweep.spec import Sweep, parse_sweep, read_sweep
from perfscope.runners.sweep.state import DONE, FAILED, PENDING, Study, continue_study, new_study
from perfscope.runners.sweep.summary import sentences, study_rows
from perfscope.runners.sweep.tables import csv_text, markdown, text_table
from tests.integration.run_support import PERFSCOPE, user_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = """
[sweep]
repeats = {repeats}
sample_interval = "off"
windows = 0

[settings]
input = "3x16x16"
batch = 8
steps = {steps}

[[cell]]
scheme = "serial"
"""


def sweep_of(**top: Any) -> Sweep:
    return parse_sweep({"sweep": top}, "test", "test.toml")


def planned(sweep: Sweep, impossible: str | None = None) -> dict[str, Any]:
    """Plans of all cells; those whose name holds `impossible` were refused."""
    return {
        cell.name: BenchError("cannot be") if impossible and impossible in cell.name else {"batch": 8}
        for cell in sweep.cells
    }


def finish(study: Study, speeds: dict[str, list[float]], sent: dict[str, float] | None = None) -> None:
    """Marks runs as done with these samples/s, by scheme."""
    for cell in study.cells:
        for run, speed in zip(cell.runs, speeds.get(cell.scheme, []), strict=False):
            run.status = DONE
            links = {"loopback": 10.0, "ethernet": (sent or {}).get(cell.scheme, 0.0)}
            run.figures = {"samples_per_s": speed, "bytes_per_step": {"predicted": links, "recorded": links}}


# --- the file -------------------------------------------------------------------------------------------


def test_lists_are_multiplied_and_single_cells_added() -> None:
    document = {
        "sweep": {"schemes": ["dp.ddp", "hy.owt"], "worlds": [2, 4], "batches": [8], "cluster": "2x2"},
        "settings": {"steps": 3},
        "scheme": {"hy.owt": {"mesh": "4,1", "steps": 5}},
        "cell": [{"scheme": "serial", "ranks": 1, "cluster": ""}],
    }
    cells = parse_sweep(document, "test", "test.toml").cells
    assert [cell.scheme for cell in cells] == ["dp.ddp", "hy.owt", "dp.ddp", "hy.owt", "serial"]
    assert cells[0].settings == {"steps": 3, "ranks": 2, "batch": 8} and cells[0].cluster == "2x2"
    assert cells[1].settings == {"steps": 5, "ranks": 2, "batch": 8, "mesh": "4,1"}
    assert cells[4].cluster is None
    assert len({cell.name for cell in cells}) == 5 and len({cell.digest for cell in cells}) == 5


def test_a_grid_multiplies_any_setting_and_names_say_what_differs() -> None:
    sweep = parse_sweep(
        {
            "sweep": {"schemes": ["dp.ddp"], "batches": [8]},
            "grid": {"lr": [0.1, 0.01], "cluster": ["", "2x1@1gbit"], "dtype": ["float64"]},
        },
        "test",
        "test.toml",
    )
    assert [(cell.settings["lr"], cell.settings["dtype"], cell.cluster) for cell in sweep.cells] == [
        (0.1, "float64", None),
        (0.1, "float64", "2x1@1gbit"),
        (0.01, "float64", None),
        (0.01, "float64", "2x1@1gbit"),
    ]
    assert sweep.cells[0].name == "dp.ddp-smallcnn-b8-lr0.1-dtypefloat64-no-cluster"


@pytest.mark.parametrize(
    ("sweep", "grid"),
    [
        ({"batches": [8, 16]}, {}),
        ({"seeds": [0, 1]}, {}),
        ({"worlds": [2, 4]}, {}),
        ({"meshes": ["dp=2", "dp=4"]}, {}),
        ({"models": ["lenet", "mlp"]}, {}),
        ({"schemes": ["dp.ddp", "dp.ddp+fp16"]}, {}),
        ({}, {"lr": [0.1, 0.2]}),
        ({}, {"optimizer": ["sgd", "nesterov"]}),
        ({}, {"dtype": ["float32", "float64"]}),
        ({}, {"backend": ["gloo", "nccl"]}),
        ({}, {"bucket_mb": [1.0, 5.0]}),
        ({}, {"threads": [1, 2]}),
        ({}, {"cluster": ["", "2x1@1gbit"]}),
    ],
)
def test_a_sweep_is_over_anything_that_a_run_can_set(sweep: dict[str, Any], grid: dict[str, Any]) -> None:
    document = {"sweep": {"schemes": ["dp.ddp"], **sweep}, "grid": grid}
    first, second = parse_sweep(document, "test", "test.toml").cells
    assert first.name != second.name and first.digest != second.digest


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"lr": [0.1, "fast"]}, "lr"),
        ({"speed": [1]}, "speed"),
        ({"lr": []}, "lr"),
        ({"cluster": [3]}, "2x2@1gbit"),
        ({"batch": [16]}, "batches in [sweep]"),
    ],
)
def test_what_a_grid_gets_wrong_is_one_line(grid: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError) as caught:
        parse_sweep({"sweep": {"schemes": ["dp.ddp"], "batches": [8]}, "grid": grid}, "test", "test.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheme_with_a_mesh_of_its_own_comes_once() -> None:
    document = {
        "sweep": {"schemes": ["dp.ddp", "hy.owt"], "meshes": ["2,1", "4,1"]},
        "scheme": {"hy.owt": {"mesh": "4,1"}},
    }
    assert [cell.scheme for cell in parse_sweep(document, "t", "t.toml").cells] == [
        "dp.ddp",
        "hy.owt",
        "dp.ddp",
    ]


def test_a_mesh_may_be_written_as_a_table() -> None:
    document = {"cell": [{"scheme": "hy.owt", "mesh": {"dp": 2, "tp": 2}}]}
    (cell,) = parse_sweep(document, "t", "t.toml").cells
    assert cell.settings == {"mesh": "dp=2,tp=2"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "top key": ({"sweeps": {}}, 'has no key "sweeps" (did you mean "sweep"?)'),
    "sweep key": ({"sweep": {"schemas": []}}, 'sweep: has no key "schemas" (did you mean "schemes"?)'),
    "setting": ({"settings": {"step": 1}}, 'settings: has no key "step" (did you mean "steps"?)'),
    "cell key": (
        {"cell": [{"scheme": "serial", "bach": 1}]},
        'cell: has no key "bach" (did you mean "batch"?)',
    ),
    "no list": (
        {"sweep": {"schemes": "serial"}},
        'sweep.schemes: must be a list, not "serial"; write ["serial"]',
    ),
    "no cell": ({"sweep": {}}, "asks for no run"),
    "cell without scheme": ({"cell": [{"batch": 1}]}, 'cell: needs "scheme"'),
    "one bracket": ({"cell": {"scheme": "serial"}}, "each under [[cell]] with two brackets"),
    "no quotes": ({"sweep": {"schemes": ["hy.owt"]}, "scheme": {"hy": {"owt": {}}}}, "with quotes"),
    "unused override": (
        {"sweep": {"schemes": ["hy.owt"]}, "scheme": {"hy.own": {"batch": 1}}},
        "did you mean 'hy.owt'",
    ),
    "worlds and meshes": ({"sweep": {"schemes": ["serial"], "worlds": [1], "meshes": ["1,1"]}}, "not both"),
    "repeats": (
        {"sweep": {"schemes": ["serial"], "repeats": 0}},
        "sweep.repeats: must be a whole number from 1 to 1,000,000,000, not 0",
    ),
    "timeout": (
        {"sweep": {"schemes": ["serial"], "cell_timeout": "soon"}},
        'sweep.cell_timeout: must be a time such as "10min", not "soon"',
    ),
    "two keys": (
        {"settings": {"bach": 1, "step": 1}, "cell": [{"shceme": "a"}]},
        'has no key "shceme" (did you mean "scheme"?)',
    ),
    "value": ({"cell": [{"scheme": "serial"}, {"scheme": "a", "batch": 0}]}, "cell 2.batch: must be a whole"),
    "mesh": ({"settings": {"mesh": "dp=2,time=2"}}, "settings.mesh: must be AXIS=PARTS,..."),
    "twice": ({"cell": [{"scheme": "serial"}, {"scheme": "serial"}]}, "twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_file_gets_wrong_is_one_line_with_the_way_out(name: str) -> None:
    document, expected = WRONG[name]
    with pytest.raises(BenchError) as caught:
        parse_sweep(document, "test", "test.toml")
    line = str(caught.value)
    assert expected in line and line.startswith("test.toml") and "\n" not in line


def test_a_file_that_is_no_toml_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[sweep\n")
    with pytest.raises(BenchError, match=r"is not TOML: .*line 1"):
        read_sweep(path)
    with pytest.raises(BenchError, match="cannot be read: No such file"):
        read_sweep(tmp_path / "other.toml")


def test_seeds_are_cells_of_their_own_with_names_that_tell_them_apart() -> None:
    cells = sweep_of(schemes=["dp.ddp"], batches=[8], seeds=[3, 4]).cells
    assert [cell.settings["seed"] for cell in cells] == [3, 4]
    assert [cell.name for cell in cells] == ["dp.ddp-smallcnn-b8-s3", "dp.ddp-smallcnn-b8-s4"]


def test_the_example_asks_for_cells_that_can_be() -> None:
    from perfscope.cli.bench.options import planned as plan_cell

    sweep = read_sweep(EXAMPLES / "hybrid.toml")
    assert len(sweep.cells) >= 8
    for cell in sweep.cells:
        job, cluster = plan_cell(cell.scheme, cell.settings, (), cell.cluster)
        assert job.num_ranks == 4 and cluster is not None and cluster.num_hosts == 2


# --- order, state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((EXAMPLES / "studies").glob("*.toml")), ids=lambda file: file.stem)
def test_every_ready_study_asks_for_runs_that_can_be(file: Path, tmp_path: Path) -> None:
    outcome = subprocess.run(
        [*PERFSCOPE, "bench", "sweep", str(file), "--dry-run", "--json", "-o", str(tmp_path / "study")],
        capture_output=True,
        text=True,
        env=user_environment(),
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    cells = json.loads(outcome.stdout)["cells"]
    assert cells
    assert [cell["impossible"] for cell in cells] == [None] * len(cells)


def test_every_cell_runs_once_before_any_runs_twice_in_an_order_that_differs() -> None:
    sweep = sweep_of(schemes=["dp.ddp", "dp.packed", "dp.perlayer", "hy.owt", "serial"], repeats=3)
    study = new_study(sweep, planned(sweep), {})
    order = [(cell.scheme, run.repeat) for cell, run in run_order(study)]
    assert [repeat for _, repeat in order] == [1] * 5 + [2] * 5 + [3] * 5
    rounds = [[scheme for scheme, repeat in order if repeat == k] for k in (1, 2, 3)]
    assert all(sorted(one) == sorted(rounds[0]) for one in rounds) and len(set(map(tuple, rounds))) > 1
    assert [(c.scheme, r.repeat) for c, r in run_order(new_study(sweep, planned(sweep), {}))] == order


def test_what_is_finished_is_kept_and_what_has_changed_runs_again() -> None:
    first = sweep_of(schemes=["dp.ddp", "dp.packed", "hy.owt"], batches=[8])
    study = new_study(first, planned(first), {"host": "a"})
    finish(study, {"dp.ddp": [1.0], "dp.packed": [2.0]})
    hy_owt = next(cell for cell in study.cells if cell.scheme == "hy.owt")
    hy_owt.runs[0].status = FAILED
    document = {
        "sweep": {"schemes": ["dp.ddp", "dp.packed", "hy.owt", "serial"], "batches": [8]},
        "scheme": {"dp.packed": {"momentum": 0.9}},
    }
    second = parse_sweep(document, "test", "test.toml")
    again, lines = continue_study(study, second, planned(second), retry_failed=False)
    status = {cell.scheme: cell.runs[0].status for cell in again.cells}
    assert status == {"dp.ddp": DONE, "dp.packed": PENDING, "hy.owt": FAILED, "serial": PENDING}
    assert "1 new (serial-" in lines[0] and "1 with other settings" in lines[0]
    retried, _ = continue_study(study, second, planned(second), retry_failed=True)
    assert next(cell for cell in retried.cells if cell.scheme == "hy.owt").runs[0].status == PENDING
    fewer = sweep_of(schemes=["dp.ddp"], batches=[8])
    less, lines = continue_study(study, fewer, planned(fewer), retry_failed=False)
    assert [cell.scheme for cell in less.wanted] == ["dp.ddp"] and len(less.cells) == 3
    assert "2 no longer asked for" in lines[0]
    same, lines = continue_study(less, first, planned(first), retry_failed=False)
    assert lines == [] or "no longer" not in lines[0]
    assert {cell.scheme: cell.runs[0].status for cell in same.wanted}["dp.packed"] == DONE


def test_a_cell_becomes_a_command_with_the_same_settings(tmp_path: Path) -> None:
    document = {
        "cell": [{"scheme": "dp.packed+topk(0.01)", "mesh": [2, 1], "input": [3, 16, 16], "lr_rule": "sqrt"}]
    }
    sweep = parse_sweep(document, "test", "test.toml")
    study = new_study(sweep, planned(sweep), {})
    cell = study.cells[0]
    words = command_of(
        cell, cell.runs[0], How(folder=tmp_path, cell_timeout_s=1, recording={"steps_per_window": 1})
    )
    text = " ".join(words[3:])
    assert text.startswith("bench run dp.packed+topk(0.01) --mesh 2,1 --input 3x16x16 --lr-rule sqrt")
    assert "--steps-per-window 1" in text and "--json --force -o" in text
    assert cell.name == "dp.packed+topk-0.01-smallcnn-m2x1"
    assert option_text("batch", 8) == "8"


def test_the_last_error_is_the_first_rank_that_spoke(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("noise\nperfscope bench: rank 1: no such file\nTraceback\nperfscope: run directory: x\n")
    assert last_error(log) == "rank 1: no such file"
    log.write_text("noise\nperfscope: cannot write x\n")
    assert last_error(log) == "cannot write x"
    log.write_text("")
    assert last_error(log) == "it said nothing"


# --- what a study says ----------------------------------------------------------------------------------


def study_with(speeds: dict[str, list[float]], sent: dict[str, float] | None = None) -> Study:
    sweep = sweep_of(schemes=list(speeds), repeats=max(map(len, speeds.values())))
    study = new_study(sweep, planned(sweep), {})
    finish(study, speeds, sent)
    return study


def test_the_winner_is_named_with_its_lead_and_the_noise_of_repeats() -> None:
    study = study_with(
        {"dp.ddp": [9.9, 10.0, 10.1], "hy.owt": [19.0, 20.0, 21.0]}, {"dp.ddp": 4 * 2**20, "hy.owt": 2**20}
    )
    assert sentences(study_rows(study)) == [
        "hy.owt is fastest with 20 samples/s, 2.0 times dp.ddp (10); repeats differ by up to 10 %.",
        "hy.owt sends the fewest bytes between hosts: 1.00 MiB per step; the most are 4.00 MiB (dp.ddp).",
    ]


def test_a_lead_within_the_noise_is_none() -> None:
    text = sentences(study_rows(study_with({"dp.ddp": [9.0, 10.0, 11.0], "hy.owt": [10.0, 10.5, 11.0]})))[0]
    assert text.startswith("hy.owt (10.5 samples/s) and dp.ddp (10) are level")


def test_one_repeat_claims_nothing_about_noise() -> None:
    text = sentences(study_rows(study_with({"dp.ddp": [10.0], "hy.owt": [20.0]})))[0]
    assert text.endswith("with one repeat each the noise is not known.")
    text = sentences(study_rows(study_with({"dp.ddp": [10.0], "hy.owt": [12.0]})))[0]
    assert text.startswith("Which is fastest is not known: ")


def test_cells_without_figures_are_listed_with_the_reason_never_as_zero() -> None:
    sweep = sweep_of(schemes=["dp.ddp", "dp.packed", "hy.owt", "serial"])
    study = new_study(sweep, planned(sweep, impossible="hy.owt"), {})
    finish(study, {"dp.ddp": [10.0]})
    packed = next(cell for cell in study.cells if cell.scheme == "dp.packed")
    packed.runs[0].status, packed.runs[0].error = FAILED, "exit code 3: rank 1: gone"
    rows = study_rows(study)
    text = text_table(rows)
    assert "dp.packed-smallcnn: exit code 3: rank 1: gone" in text
    assert "hy.owt-smallcnn: impossible: cannot be" in text
    assert "not run yet: 1 of 4 cells (serial-smallcnn)" in text
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["dp.ddp", "dp.packed", "hy.owt"]
    assert text.splitlines()[2].split()[1] == "0/1"
    assert set(text.splitlines()[2].split()[2:]) == {"–"}
    assert sentences(rows)[-1] == "1 of 4 cells did not finish: dp.packed."
    table = {row["scheme"]: row for row in csv.DictReader(csv_text(rows).splitlines())}
    assert table["dp.ddp"]["samples_per_s"] == "10.0" and table["dp.packed"]["samples_per_s"] == ""
    assert table["hy.owt"]["status"] == "impossible"


def ran(study: Study, scheme: str) -> dict[str, Any]:
    """Figures of the first run of a cell."""
    found = next(cell for cell in study.cells if cell.scheme == scheme).runs[0].figures
    assert found is not None
    return found


def test_disturbed_and_diverged_runs_are_counted_said_first_and_marked() -> None:
    study = study_with({"dp.ddp": [10.0, 11.0], "hy.owt": [20.0, 21.0]})
    ran(study, "dp.ddp").update(disturbed=True, disturbances=["cpu_neighbour"])
    ran(study, "hy.owt").update(diverged=True, held_out_loss=None)
    rows = study_rows(study)
    said = sentences(rows)
    assert said[0] == "1 of 4 runs was disturbed by other processes (marked *)."
    assert "Training diverged: hy.owt; lower lr." in said
    lines = text_table(rows).splitlines()
    assert lines[1].startswith("hy.owt") and "diverged" in lines[1] and "*" not in lines[1]
    assert lines[2].startswith("dp.ddp") and "10.5*" in lines[2]
    table = {row["scheme"]: row for row in csv.DictReader(csv_text(rows).splitlines())}
    assert (table["dp.ddp"]["disturbed"], table["hy.owt"]["diverged"]) == ("1", "1")


def test_exposed_communication_is_a_share_with_its_traced_step_beside_it() -> None:
    study = study_with({"dp.ddp": [10.0]})
    ran(study, "dp.ddp").update(exposed_comm_ns=9e6, exposed_comm_ratio=0.33, step_median_ns=5e6)
    head, line = text_table(study_rows(study)).splitlines()
    assert "exposed comm (of traced step)" in head and "33 % of 27.3 ms" in line


def test_an_interrupted_study_says_how_far_each_cell_is() -> None:
    rows = study_rows(study_with({"dp.ddp": [10.0], "hy.owt": [20.0, 21.0]}))
    assert sentences(rows)[-1] == "dp.ddp: 1 of 2 repeats so far."
    assert [line.split()[1] for line in text_table(rows).splitlines()[1:]] == ["2/2", "1/2"]


def test_a_study_says_what_was_trained() -> None:
    study = study_with({"dp.ddp+topk(0.01)": [10.0], "hy.owt": [20.0]})
    for cell, ranks in zip(study.cells, (2, 4), strict=True):
        cell.plan.update(model="alexnet", input="3x64x64", ranks=ranks, mesh=f"{ranks},1", steps=6, threads=1)
        cell.cluster = "2x2@1gbit"
    line = trained_line(study)
    assert line == (
        "alexnet, input 3x64x64, 2 or 4 ranks, batch 8, 6 steps, 1 repeat, 1 thread per rank; "
        "cluster 2x2@1gbit: links are emulated, compute is shared"
    )
    study.trained = line
    rows = study_rows(study)
    assert markdown(study, rows, []).splitlines()[2] == f"{line}."
    row = next(csv.DictReader(csv_text(rows[1:]).splitlines()))
    told = [
        row[name] for name in ("scheme", "modifiers", "model", "ranks", "mesh", "steps", "cluster", "threads")
    ]
    assert told == ["dp.ddp", "topk(0.01)", "alexnet", "2", "2,1", "6", "2x2@1gbit", "1"]
    assert row["predicted_within_hosts_bytes_per_step"] == "10.0"


def test_windows_of_a_periodic_scheme_hold_whole_periods(tmp_path: Path) -> None:
    sweep = sweep_of(schemes=["dp.local_sgd", "dp.ddp"])
    study = new_study(sweep, planned(sweep), {})
    study.cells[0].plan["period"] = 4
    how = How(folder=tmp_path, cell_timeout_s=1, recording=sweep.recording)
    steps = [
        words[words.index("--steps-per-window") + 1]
        for words in (command_of(cell, cell.runs[0], how) for cell in study.cells)
    ]
    assert steps == ["4", "1"]


# --- real sweeps ----------------------------------------------------------------------------------------


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PERFSCOPE, "bench", "sweep", "sweep.toml", "-o", "study", *words],
        cwd=folder,
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def to_end(folder: Path, *words: str) -> tuple[int, str, str]:
    process = start(folder, *words)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "study" / "study.json").read_bytes())
    return document


def states(folder: Path) -> dict[str, str]:
    return {
        f"{cell['scheme']} {run['repeat']}": run["status"]
        for cell in read(folder)["cells"]
        for run in cell["runs"]
    }


def wait_for(folder: Path, done: int, begun: int) -> None:
    """Until that many runs are finished and that many have begun."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        logs = list((folder / "study" / "runs").glob("*.log"))
        if len(logs) >= begun and list(states(folder).values()).count("done") >= done:
            return
        time.sleep(0.1)
    pytest.fail("the sweep did not get that far")


@pytest.mark.slow
@pytest.mark.torch
def test_a_failed_cell_and_an_impossible_one_do_not_stop_a_sweep(tmp_path: Path) -> None:
    for number in range(40):  # planning lists images, only training opens them
        image = tmp_path / "images" / f"class{number % 2}" / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"no image at all")
    more = '\n[[cell]]\nscheme = "serial"\ndata = "images"\n'
    more += '\n[[cell]]\nscheme = "dp.packed"\nranks = 2\nbatch = 7\n'
    more += '\n[[cell]]\nscheme = "dp.packed"\nranks = 2\n'
    (tmp_path / "sweep.toml").write_text(TINY.format(repeats=1, steps=4) + more)
    code, out, err = to_end(tmp_path)
    assert code == 1, err
    study = read(tmp_path)
    by_name = {cell["name"]: cell for cell in study["cells"]}
    failed = next(cell for cell in study["cells"] if "data" in cell["settings"])
    error = failed["runs"][0]["error"]
    assert failed["runs"][0]["status"] == "failed" and error.startswith("exit code ") and ".png" in error
    assert "cannot be cut into 2" in by_name["dp.packed-smallcnn-p2-b7"]["impossible"]
    good = by_name["dp.packed-smallcnn-p2-b8"]["runs"][0]
    assert good["status"] == "done" and good["figures"]["samples_per_s"] > 0
    report = subprocess.run(
        [*PERFSCOPE, "report", str(tmp_path / "study" / good["path"]), "--json"],
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    told = json.loads(report.stdout)["bench"]
    for name in ("samples_per_s", "step_median_ns", "step_p10_ns", "held_out_loss", "first_loss"):
        assert good["figures"][name] == told[name], name
    assert good["figures"]["bytes_per_step"]["recorded"] == {"loopback": told["links"][0]["recorded"]}
    csv_lines = (tmp_path / "study" / "study.csv").read_text().splitlines()
    rows = {row["cell"]: row for row in csv.DictReader(csv_lines)}
    assert rows["dp.packed-smallcnn-p2-b8"]["samples_per_s"] == str(told["samples_per_s"])
    assert (tmp_path / "study" / "study.csv").exists() and (tmp_path / "study" / "study.md").exists()
    assert "did not finish" in "".join(out.split("\n\n")[:2])  # before any table
    assert "is impossible: a batch of 7" in err
    before = good["seconds"], good["figures"]
    code, out, err = to_end(tmp_path, "--json")
    assert code == 1 and "nothing is left to run" in err
    assert json.loads(out)["schema_version"] == 1
    good = next(c for c in read(tmp_path)["cells"] if c["name"] == "dp.packed-smallcnn-p2-b8")["runs"][0]
    assert (good["seconds"], good["figures"]) == before
    assert not json.loads(out)["machine"].get("error")


@pytest.mark.slow
@pytest.mark.torch
def test_a_sweep_goes_on_after_ctrl_c_and_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(TINY.format(repeats=3, steps=4))
    first = start(tmp_path)
    wait_for(tmp_path, done=1, begun=2)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130 and "the same command goes on: " in err
    assert states(tmp_path) == {"serial 1": "done", "serial 2": "pending", "serial 3": "pending"}
    kept = read(tmp_path)["cells"][0]["runs"][0]

    second = start(tmp_path)
    wait_for(tmp_path, done=2, begun=3)
    second.kill()
    second.communicate(timeout=60)
    assert list(states(tmp_path).values()).count("done") == 2

    code, out, err = to_end(tmp_path)
    assert code == 0, err
    assert set(states(tmp_path).values()) == {"done"}
    assert read(tmp_path)["cells"][0]["runs"][0] == kept
    assert "2 runs finished before" in err
    assert "serial trains " in out
    assert not list((tmp_path / "study").glob("*.part"))


@pytest.mark.slow
@pytest.mark.torch
def test_a_cell_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    text = TINY.format(repeats=1, steps=100000).replace("[sweep]", '[sweep]\ncell_timeout = "15s"')
    (tmp_path / "sweep.toml").write_text(text)
    code, out, _ = to_end(tmp_path)
    assert code == 1
    assert "took longer than 15 s" in out
    assert os.listdir(tmp_path / "study" / "runs")  # noqa: PTH208 - what was recorded until then is kept


def test_a_dry_run_lists_the_runs_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from perfscope.cli.main import cli

    monkeypatch.chdir(tmp_path)
    more = '\n[[cell]]\nscheme = "dp.packed"\nranks = 2\nbatch = 7\n'
    Path("sweep.toml").write_text(TINY.format(repeats=2, steps=4) + more)
    result = CliRunner().invoke(cli, ["bench", "sweep", "sweep.toml", "--dry-run"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith("2 runs, in this order, into perfscope-studies/sweep\n")
    assert "smallcnn, input 3x16x16, 1 rank, batch 8, 4 steps, 2 repeats, " in result.stdout
    assert " per rank\n" in result.stdout
    assert result.stdout.count("perfscope bench run serial --input 3x16x16") == 2
    assert "Impossible\n  dp.packed-smallcnn-p2-b7: a batch of 7" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.toml"]


def test_names_nobody_knows_and_patterns_that_match_nothing_are_one_line(tmp_path: Path) -> None:
    from perfscope.cli.main import cli
    from perfscope.errors import UsageError

    path = tmp_path / "sweep.toml"
    path.write_text('[[cell]]\nscheme = "dp.pakced"\n')
    with pytest.raises(
        BenchError, match=r"sweep\.toml: there is no scheme 'dp\.pakced'; did you mean dp\.packed"
    ):
        cli.main(["bench", "sweep", str(path), "--dry-run"], standalone_mode=False)
    path.write_text('[sweep]\nschemes = ["dp.ddp", "dp.packed"]\nbatches = [7]\n')
    with pytest.raises(BenchError, match=r"none of the 2 cells of .* can be run: a batch of 7 ") as caught:
        cli.main(["bench", "sweep", str(path), "--dry-run"], standalone_mode=False)
    assert str(caught.value).count("a batch of 7") == 1
    path.write_text('[[cell]]\nscheme = "serial"\n')
    with pytest.raises(UsageError, match=r"--only 'hy\.\*' matches no cell; there are serial-smallcnn"):
        cli.main(["bench", "sweep", str(path), "--only", "hy.*", "--dry-run"], standalone_mode=False)
