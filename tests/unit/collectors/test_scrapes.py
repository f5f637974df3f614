"""Scrapes of DCGM exporter, as text, into a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from perfscope.collectors.gpu.scrapes import import_scrapes
from perfscope.errors import PerfscopeError, RunDirectoryError, TraceError
from perfscope.rundir.reader import RunReader
from tests.support.mutations import mutated
from tests.support.trace_samples import Sample

START = 1_790_000_000
SECOND = 10**9
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def run_of(folder: Path, *, sampled: str = "") -> Path:
    """A run on host n1 with two GPUs, of 10 s; its monotonic clock was 500 s at its start."""
    run = folder / "run"
    host = run / "hosts" / "n1"
    host.mkdir(parents=True)
    (run / "ranks").mkdir()
    manifest = {"schema_version": 1, "start_unix_ns": START * SECOND, "end_unix_ns": (START + 10) * SECOND}
    (run / "run.json").write_text(json.dumps(manifest))
    gpus = [{"id": "gpu:0", "index": 0, "uuid": UUID}, {"id": "gpu:1", "index": 1, "uuid": "GPU-2"}]
    (host / "topology.json").write_text(json.dumps({"schema_version": 1, "host": "n1", "gpus": gpus}))
    lines: list[object] = [
        {
            "schema_version": 1,
            "host": "n1",
            "pid": 1,
            "interval_ns": SECOND,
            "anchor": [500 * SECOND, START * SECOND],
        }
    ]
    if sampled:
        series = {
            "metric": sampled,
            "labels": {"gpu": "0"},
            "unit": "watts",
            "kind": "gauge",
            "quality": "exact",
        }
        lines += [{"id": 0, "collector": "gpu", "series": [series]}, [0, 501 * SECOND, 501 * SECOND, [200]]]
    (host / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def value(
    name: str, reading: object, uuid: str = UUID, gpu: int = 0, host: str = "exporter-x", more: str = ""
) -> str:
    labels = f'gpu="{gpu}",UUID="{uuid}",device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="{host}"{more}'
    return f"{name}{{{labels}}} {reading}\n"


def scrape(at: float, *lines: str) -> str:
    head = "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
    return f"# {at}\n{head}{''.join(lines)}"


def written(folder: Path, text: str) -> Path:
    path = folder / "dcgm.prom"
    path.write_text(text)
    return path


def readings(run: Path, metric: str, gpu: str = "0") -> list[tuple[float, float]]:
    samples = RunReader(run).samples("n1")
    assert samples is not None
    (series,) = samples.find(metric, gpu=gpu)
    values = (series.values * series.scale).tolist()
    return list(zip((series.t_begin_ns / SECOND).tolist(), values, strict=True))


def test_values_have_neutral_names_units_and_the_clock_of_the_host(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    text = "".join(
        scrape(
            START + at,
            value("DCGM_FI_DEV_GPU_UTIL", 40 + at),
            value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 3000 * at),
            value("DCGM_FI_DEV_FB_USED", 1024),
            value("DCGM_FI_DEV_SM_CLOCK", 1980),
            value("DCGM_FI_PROF_NVLINK_TX_BYTES", 5e9, uuid="GPU-2", gpu=1),
            value("DCGM_FI_DEV_XID_ERRORS", 0),
        )
        for at in (1, 3)
    )
    added = import_scrapes(run, [written(tmp_path, text)])
    assert (added.num_values, added.gpus) == (10, (("n1", "0"), ("n1", "1")))
    busy = readings(run, "gpu_utilization")
    assert [at for at, _ in busy] == [501, 503]
    assert [level for _, level in busy] == pytest.approx([0.41, 0.43])
    assert readings(run, "gpu_energy") == [(501, 3), (503, 9)]
    assert readings(run, "gpu_memory_used")[0] == (501, 1 << 30)
    assert readings(run, "gpu_clock")[0] == (501, 1.98e9)
    assert readings(run, "gpu_link_tx_rate", "1")[0] == (501, 5e9)


def test_times_behind_values_are_used(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    line = value("DCGM_FI_DEV_POWER_USAGE", "350.5").rstrip("\n") + f" {START * 1000 + 2500}\n"
    import_scrapes(run, [written(tmp_path, line)])
    assert readings(run, "gpu_power") == [(502.5, 350.5)]


def test_a_gpu_without_uuid_is_found_by_host_and_number(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    text = scrape(START + 1, value("DCGM_FI_DEV_POWER_USAGE", 300, uuid="", gpu=1, host="n1.cluster.org"))
    import_scrapes(run, [written(tmp_path, text)])
    assert readings(run, "gpu_power", "1") == [(501, 300)]


def test_scrapes_that_name_no_host_are_told_so(tmp_path: Path) -> None:
    text = scrape(START + 1, 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-9"} 300\n')
    with pytest.raises(PerfscopeError, match="name no host"):
        import_scrapes(run_of(tmp_path), [written(tmp_path, text)])


def test_what_perfscope_sampled_itself_is_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, sampled="gpu_power")
    lines = value("DCGM_FI_DEV_POWER_USAGE", 999), value("DCGM_FI_DEV_GPU_UTIL", 50)
    added = import_scrapes(run, [written(tmp_path, scrape(START + 1, *lines))])
    assert (added.num_values, added.num_sampled) == (1, 1)
    assert readings(run, "gpu_power") == [(501, 200)]


def test_parts_of_gpus_blank_values_and_other_gpus_are_counted_and_left_out(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    lines = (
        value("DCGM_FI_DEV_GPU_UTIL", 10),
        value("DCGM_FI_DEV_GPU_UTIL", 11, more=',GPU_I_ID="1"'),
        value("DCGM_FI_DEV_GPU_UTIL", 12, uuid="GPU-of-another-node"),
        value("DCGM_FI_DEV_FB_USED", 9223372036854775794),
        value("DCGM_FI_DEV_MEM_CLOCK", "NaN"),
    )
    added = import_scrapes(run, [written(tmp_path, scrape(START + 1, *lines))])
    assert (added.num_values, added.num_unknown, added.num_dropped) == (1, 2, 2)


def test_one_scrape_without_a_time_is_dated_by_its_file(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    path = written(tmp_path, value("DCGM_FI_DEV_POWER_USAGE", 300))
    os.utime(path, ns=((START + 4) * SECOND, (START + 4) * SECOND))
    assert import_scrapes(run, [path]).by_file_time == (path,)
    assert readings(run, "gpu_power") == [(504, 300)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        (value("DCGM_FI_DEV_POWER_USAGE", math.nan), "none of its 1 values of DCGM exporter can be used"),
        ("node_load1 0.5\n", "holds no metric of DCGM exporter"),
        (2 * value("DCGM_FI_DEV_POWER_USAGE", 300), "several scrapes without times"),
        (scrape(START + 9000, value("DCGM_FI_DEV_POWER_USAGE", 300)), "no scrape is of the time of this run"),
        (
            scrape(START, value("DCGM_FI_DEV_POWER_USAGE", 3, uuid="GPU-9")),
            "no GPU of the scrapes (hosts exp",
        ),
    ],
)
def test_text_of_no_use_is_one_line_that_says_why(text: str, words: str, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with pytest.raises(TraceError) as raised:
        import_scrapes(run, [written(tmp_path, text)])
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not (run / "hosts/n1/scrapes.jsonl").exists()


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, value("DCGM_FI_DEV_POWER_USAGE", 300))
    with pytest.raises(RunDirectoryError, match="is no run"):
        import_scrapes(tmp_path, [path])


def test_the_command_needs_one_of_output_and_into(tmp_path: Path) -> None:
    run_of(tmp_path)
    written(tmp_path, scrape(START + 1, value("DCGM_FI_DEV_POWER_USAGE", 300)))
    command = [sys.executable, "-m", "perfscope", "import", "dcgm.prom"]
    neither = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert neither.returncode == 2 and "--into" in neither.stderr
    done = subprocess.run(
        [*command, "--into", "run"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("1 value of 1 figure: n1 GPU 0\n")


def test_damaged_text_is_one_line_or_what_can_be_read(tmp_path: Path) -> None:
    text = "".join(scrape(START + at, value("DCGM_FI_DEV_GPU_UTIL", at)) for at in range(8))
    for seed in range(60):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run = run_of(folder)
        path = folder / "dcgm.prom"
        path.write_bytes(mutated(Sample("dcgm.prom", text.encode()), Random(seed), packed=False))
        try:
            assert import_scrapes(run, [path]).num_values > 0
        except PerfscopeError as error:
            assert "\n" not in str(error)
        samples = RunReader(run).samples("n1")
        assert samples is None or samples.num_dropped == 0


@pytest.mark.slow
def test_memory_stays_below_the_size_of_the_text(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    path = tmp_path / "dcgm.prom"
    with path.open("w", encoding="utf-8") as file:
        for at in range(10_000):
            file.write(scrape(START + at / 10_000, value("DCGM_FI_DEV_POWER_USAGE", 300)))
    import_scrapes(run, [path])  # imports of modules do not count
    tracemalloc.start()
    import_scrapes(run, [path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size
