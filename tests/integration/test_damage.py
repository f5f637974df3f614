"""A damaged run directory: one line, or a report that names every figure that is not what it was."""

from __future__ import annotations

import collections
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.pipelining")

from tests.integration import damage
from tests.integration.run_support import PERFSCOPE, run, user_environment
from tests.integration.test_pipelines import EXPERTS, PIPELINE

_TRAIN = """
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
model = nn.parallel.DistributedDataParallel(body)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


# Recorded run -> (program, its arguments, options of `perfscope run`, keys of the report that it must have)
_RUNS = {
    "data parallel": (
        _TRAIN,
        (),
        ("--layer-counters", "--stacks"),
        ("counters", "communication", "what_ifs"),
    ),
    "pipeline": (PIPELINE, ("Schedule1F1B", "1", "4", "-1"), (), ("pipeline", "communication", "waits")),
    "experts": (EXPERTS, ("1",), (), ("experts", "communication", "waits")),
}
_BENCH = ("dp.fsdp", "--ranks", "2", "--steps", "12", "--cluster", "2x1")  # each rank on a host of its own
_BENCH_KEYS = ("bench", "communication", "what_ifs")


def _record(folder: Path, kind: str) -> tuple[str, ...]:
    """A run of two ranks in `folder`, with its derived tables; keys that its report must have."""
    if kind == "bench":
        command = [*PERFSCOPE, "bench", "run", *_BENCH, "-o", str(folder / "run")]
        done = subprocess.run(command, env=user_environment(), capture_output=True, timeout=240, check=False)
        keys = _BENCH_KEYS
    else:
        program, arguments, options, keys = _RUNS[kind]
        (folder / "train.py").write_text(program)
        launch = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py", *arguments)
        done = run(*launch, cwd=folder, options=("--ceilings", "off", *options))
    assert done.returncode == 0, done.stderr
    return keys


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data-parallel ranks with traced windows, hardware samples, layer counters and stacks."""
    folder = tmp_path_factory.mktemp("damage")
    _record(folder, "data parallel")
    return folder / "run"


def _fuzz(
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    num: int,
    keys: tuple[str, ...] = _RUNS["data parallel"][-1],
) -> tuple[list[str], collections.Counter[str]]:
    """Complaints, and how the reports ended."""
    rng, wrong, ends = random.Random(seed), [], collections.Counter[str]()
    copy = tmp_path / "run"
    untouched = damage.report_of(recorded, capsys)
    assert untouched.document is not None
    assert untouched.document["layers"] and untouched.document["machine"]["tracks"], "windows and samples"
    assert all(untouched.document[key] for key in keys)
    for number in range(num):
        damage.copy_run(recorded, copy)
        what = damage.mutate(copy, rng)
        try:
            outcome = damage.report_of(copy, capsys)
        except damage.HangError:
            wrong.append(f"{seed}/{number} {what}: hangs")
            continue
        said = damage.complaint(untouched.document, outcome)
        if said:
            wrong.append(f"{seed}/{number} {what}: {said}")
        is_noted = outcome.document is not None and damage.gaps(outcome.document) != damage.gaps(
            untouched.document
        )
        ends["wrong" if said else "one line" if outcome.code else "noted" if is_noted else "unchanged"] += 1
    return wrong, ends


def test_an_untouched_copy_reports_the_same_figures(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = damage.report_of(recorded, capsys)
    assert (recorded / "derived").is_dir()
    damage.copy_run(recorded, tmp_path / "run")
    second = damage.report_of(tmp_path / "run", capsys)
    assert first.document is not None and second.document is not None
    assert damage.uncovered(first.document, second.document) == []
    assert not any(gap["affects"] for gap in damage.gaps(first.document)), "an intact run notes no damage"


@pytest.mark.parametrize(
    ("name", "affected", "words"),
    [
        (
            "ranks/0/steps.jsonl",
            ("step_ns", "ranks.0", "throughput_samples_per_s"),
            "31 of 41 lines",
        ),
        ("ranks/1/layers.json", ("layers",), "not there any more"),
        ("hosts/HOST/topology.json", ("machine", "findings"), "not there any more"),
        ("hosts/HOST/samples.jsonl", ("machine",), "lines are there"),
        ("ranks/1/windows/0.json.gz", ("ranks.1", "layers", "collectives"), "not there any more"),
        ("ranks/1/rank.json", ("ranks", "step_ns"), "not there any more"),
        ("ranks/1/windows/0.counters.json.gz", ("layers", "counters"), "not there any more"),
    ],
)
def test_what_is_cut_or_gone_is_named_with_the_figures_it_affects(
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    affected: tuple[str, ...],
    words: str,
) -> None:
    damage.copy_run(recorded, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "derived", ignore_errors=True)
    host = next((recorded / "hosts").iterdir()).name
    path = tmp_path / "run" / name.replace("HOST", host)
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-10]))
    else:
        path.unlink()
    outcome = damage.report_of(tmp_path / "run", capsys)
    assert outcome.document is not None, outcome.stderr
    found = [gap for gap in damage.gaps(outcome.document) if words in gap["reason"]]
    assert found, damage.gaps(outcome.document)
    assert set(affected) <= {path for gap in found for path in gap["affects"]}
    assert "of 1 CPUs" not in outcome.stdout, "a machine of unknown size has no share of its CPUs"


@pytest.mark.parametrize("name", ["run.json", "hosts/HOST/samples.jsonl", "ranks/0/layers.json"])
@pytest.mark.parametrize("kind", ["deep nesting in place", "pipe in place"])
def test_every_reading_command_gets_past_deep_nesting_and_pipes(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    run_dir = tmp_path / "run"
    damage.copy_run(recorded, run_dir)
    host = next((recorded / "hosts").iterdir()).name
    path = run_dir / name.replace("HOST", host)
    path.unlink()
    if kind == "pipe in place":
        os.mkfifo(path)
    else:
        path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    for arguments in (
        ("report", "--json", str(run_dir)),
        ("compare", "--json", str(run_dir), str(recorded)),
        ("export", str(run_dir), "--format", "csv", "-o", str(tmp_path / "out.csv")),
        ("collect", str(run_dir), "-o", str(tmp_path / "collected")),
    ):
        outcome = damage.perfscope(capsys, *arguments)
        assert outcome.code in (0, 1, 3), (arguments, outcome)
        said = outcome.stderr.splitlines()
        assert all(line.startswith("perfscope: ") for line in said), (arguments, said)
        assert "internal error" not in outcome.stderr
        assert outcome.code != 1 or 1 <= len(said) <= 2, (arguments, said)  # which run, and what follows


def test_sixty_mutations_change_no_figure_without_a_note(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, _ = _fuzz(recorded, tmp_path, capsys, seed=15, num=60)
    assert wrong == []


FUZZED = pytest.mark.parametrize(
    ("kind", "seed"),
    [("data parallel", 1), ("data parallel", 2), ("pipeline", 3), ("experts", 4), ("bench", 5)],
)


@pytest.mark.slow
@FUZZED
def test_mutations_of_each_kind_of_run_change_no_figure_without_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, seed: int
) -> None:
    _assert_noted(tmp_path, capsys, kind, seed, 80)


@pytest.mark.sweep
@FUZZED
def test_two_thousand_mutations_change_no_figure_without_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, seed: int
) -> None:
    _assert_noted(tmp_path, capsys, kind, 10 + seed, 400)


def _assert_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, seed: int, num: int) -> None:
    keys = _record(tmp_path, kind)
    (tmp_path / "mutated").mkdir()
    wrong, ends = _fuzz(tmp_path / "run", tmp_path / "mutated", capsys, seed, num, keys)
    with capsys.disabled():
        print(f"\n{num} mutations of {kind}, seed {seed}: {dict(sorted(ends.items()))}")
    assert wrong == []
    assert ends["noted"] > num // 4 and ends["one line"] > num // 80, "the damage is seen at all"


@pytest.mark.slow
def test_wrong_types_in_runs_without_seals_are_no_internal_error(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing can say that a figure changed there; the report must come all the same, or one line."""
    rng, wrong = random.Random(4), []
    damage.report_of(recorded, capsys)
    for number in range(100):
        damage.copy_run(recorded, tmp_path / "run")
        damage.strip_seals(tmp_path / "run")
        files = [one for one in damage.files_of(tmp_path / "run") if one.suffix in (".json", ".jsonl")]
        name = rng.choice(files)
        what = damage.WRONG_TYPES(tmp_path / "run" / name, rng)
        outcome = damage.report_of(tmp_path / "run", capsys)
        lines = outcome.stderr.splitlines()
        if outcome.code not in (0, 1) or (outcome.code == 1 and len(lines) != 1):
            wrong.append(f"{number} {name} {what}: exit {outcome.code}: {outcome.stderr!r}")
    assert wrong == []
