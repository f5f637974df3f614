"""Real programs with pipelines and with experts: perfscope against the programs' own clocks."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch.distributed.pipelining")

from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.pipelines import Schedule
from tests.integration.run_support import PERFSCOPE, user_environment

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Each rank writes down when it worked on what: [step, stage, work, microbatch, start, end].
PIPELINE = dedent(
    """
    import json, os, sys, time, torch, torch.nn as nn, torch.distributed as dist
    from torch.distributed import pipelining
    name, per_rank, microbatches, slow = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    log, now = [], {"step": 0}

    class Logged(pipelining.PipelineStage):
        def timed(self, work, chunk, call):
            start = time.time_ns()
            result = call()
            log.append([now["step"], self.stage_index, work, chunk, start, time.time_ns()])
            return result
        def forward_one_chunk(self, chunk, *args, **kwargs):
            return self.timed("F", chunk,
                              lambda: super(Logged, self).forward_one_chunk(chunk, *args, **kwargs))
        def backward_one_chunk(self, chunk, *args, **kwargs):
            full = kwargs.get("full_backward", True)
            return self.timed("B" if full else "I", chunk,
                              lambda: super(Logged, self).backward_one_chunk(chunk, *args, **kwargs))
        def backward_weight_one_chunk(self, chunk, *args, **kwargs):
            return self.timed("W", chunk,
                              lambda: super(Logged, self).backward_weight_one_chunk(chunk, *args, **kwargs))

    width, rows, count = 256, 32, ranks * per_rank
    def part(index):
        layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(8 if index == slow else 4)]
        return nn.Sequential(*layers)
    mine = [rank + turn * ranks for turn in range(per_rank)]
    if "ZBV" in name:
        mine = [rank, count - 1 - rank]
    parts = [part(index) for index in mine]
    stages = [Logged(module, index, count, torch.device("cpu")) for module, index in zip(parts, mine)]
    kind = getattr(pipelining, name) if hasattr(pipelining, name) else getattr(pipelining.schedules, name)
    schedule = kind(stages if per_rank > 1 or "Interleaved" in name else stages[0], microbatches,
                    loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for module in parts for p in module.parameters()], lr=0.01)
    x, y = torch.randn(rows * microbatches, width), torch.randn(rows * microbatches, width)
    for step in range(12):
        now["step"] = step
        optimizer.zero_grad()
        schedule.step(*([x] if 0 in mine else []), target=y if count - 1 in mine else None)
        optimizer.step()
    with open(f"times-{rank}.json", "w") as file:
        json.dump(log, file)
    dist.barrier()
    dist.destroy_process_group()
    """
)

EXPERTS = dedent(
    """
    import sys, torch, torch.distributed as dist, torch.nn as nn
    hot, width = int(sys.argv[1]), 256
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, send, receive):
            ctx.splits = send, receive
            out = x.new_empty(sum(receive), x.shape[1])
            dist.all_to_all_single(out, x.contiguous(), receive, send)
            return out
        @staticmethod
        def backward(ctx, gradient):
            send, receive = ctx.splits
            out = gradient.new_empty(sum(send), gradient.shape[1])
            dist.all_to_all_single(out, gradient.contiguous(), send, receive)
            return out, None, None

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            wide = 4 * width
            self.expert = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))
        def forward(self, x):
            send = [len(x) // (2 * ranks)] * ranks
            send[hot] += len(x) - sum(send)
            counts = torch.empty(ranks, dtype=torch.int64)
            dist.all_to_all_single(counts, torch.tensor(send))
            receive = counts.tolist()
            return x + Exchange.apply(self.expert(Exchange.apply(x, send, receive)), receive, send)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), Experts(), Experts())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(256, width)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    """
)


def ran(program: str, ranks: int, folder: Path, *arguments: object) -> RunAnalysis:
    """A run of the program, analyzed."""
    (folder / "train.py").write_text(program)
    quiet = ("--ceilings", "off", "--sample-interval", "off", "-o", "run")
    train = ("torchrun", "--standalone", "--nproc-per-node", str(ranks), "train.py", *map(str, arguments))
    command = [*PERFSCOPE, "run", *quiet, "--", sys.executable, "-m", "torch.distributed.run", *train[1:]]
    ended = subprocess.run(
        command, cwd=folder, env=user_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    ingest_run(folder / "run")
    return analyze_run(RunReader(folder / "run"))


def own_ratio(folder: Path, pipeline: Pipeline) -> float:
    """Bubble of the step that is shown, from what the program wrote down.

    The step that opens a window begins in the first forward pass of each rank: before that, the program's
    clock counts the start of the profiler. So first works begin when perfscope says, on the program's clock.
    """
    logs = [json.loads(path.read_text()) for path in sorted(folder.glob("times-*.json"))]
    times = {
        (stage, work, chunk): (start, end)
        for log in logs
        for step, stage, work, chunk, start, end in log
        if step == pipeline.shown_step
    }
    offset = statistics.median(
        times[span.stage, span.work.value, span.microbatch][1] - span.end_ns for span in pipeline.spans
    )
    begins: set[int] = set()
    works = []
    for span in pipeline.spans:
        start, end = times[span.stage, span.work.value, span.microbatch]
        works.append((start if span.rank in begins else max(start, span.start_ns + offset), end))
        begins.add(span.rank)
    active = max(end for _, end in works) - min(start for start, _ in works)
    return float(1 - sum(end - start for start, end in works) / (pipeline.num_ranks * active))


@pytest.mark.parametrize(
    ("name", "schedule", "ranks", "per_rank", "microbatches"),
    [
        ("ScheduleGPipe", Schedule.GPIPE, 2, 1, 4),
        ("Schedule1F1B", Schedule.ONE_F_ONE_B, 3, 1, 6),
        ("ScheduleInterleaved1F1B", Schedule.INTERLEAVED, 2, 2, 4),
        ("ScheduleLoopedBFS", Schedule.LOOPED_BFS, 2, 2, 4),
        ("ScheduleInterleavedZeroBubble", Schedule.ZERO_BUBBLE, 2, 2, 4),
        ("ScheduleZBVZeroBubble", Schedule.ZB_V, 2, 2, 4),
    ],
)
def test_the_bubble_agrees_with_the_programs_own_clock(
    tmp_path: Path, name: str, schedule: Schedule, ranks: int, per_rank: int, microbatches: int
) -> None:
    result = ran(PIPELINE, ranks, tmp_path, name, per_rank, microbatches, -1)
    pipeline = result.pipeline
    assert pipeline is not None, result.missing
    assert pipeline.schedule is schedule
    assert (pipeline.microbatches, pipeline.virtual_stages) == (microbatches, per_rank)
    works = [(span.end_ns - span.start_ns) for span in pipeline.spans]
    shown = 1 - sum(works) / (ranks * max(span.end_ns for span in pipeline.spans))
    assert shown == pytest.approx(own_ratio(tmp_path, pipeline), abs=0.03)
    bubble = pipeline.bubble
    parts = (bubble.fill_ns, bubble.drain_ns, bubble.imbalance_ns, bubble.late_sends_ns, bubble.other_ns)
    assert sum(parts) == bubble.measured_ns


def test_a_stage_with_twice_the_layers_computes_longest(tmp_path: Path) -> None:
    relative = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        pipeline = ran(PIPELINE, 2, folder, "Schedule1F1B", 1, 6, 1).pipeline
        assert pipeline is not None
        relative.append(pipeline.stages[1].compute_ns / pipeline.stages[0].compute_ns)
    assert 1.4 < statistics.median(relative) < 2.8


def test_tokens_of_real_experts_are_those_that_were_sent(tmp_path: Path) -> None:
    experts = ran(EXPERTS, 2, tmp_path, 1).experts
    assert experts is not None and len(experts.layers) == 2
    for layer in experts.layers:
        assert [rank.tokens for rank in layer.ranks] == [128, 384]
        assert layer.imbalance == pytest.approx(1.5)
