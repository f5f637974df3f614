"""Who was late, and why: programs in which exactly one thing differs between ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis import breakdown as bd
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collectives import analyze_collectives
from perfscope.analysis.comm_record import CommRecord
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing
from perfscope.analysis.spans import spans_of, window_facts
from perfscope.analysis.waits.analyze import analyze_waits
from perfscope.analysis.waits.host_conditions import HostConditions
from perfscope.analysis.waits.results import LateCause, WaitAnalysis
from perfscope.analysis.waits.stragglers import RankStepTimes, always_on, binomial_tail
from perfscope.analysis.windows import Window, one_window
from perfscope.ingest.importing import import_traces
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.lateness import LateReason
from tests.support.synthetic_lines import Played, Step, play

MS = 1_000_000
WORLD = {"world": (0, 1, 2, 3)}
Op = tuple[Any, ...]


def forward(a: int = 10, b: int = 20) -> list[Op]:
    return [("compute", "conv", "forward", a * MS), ("compute", "fc", "forward", b * MS)]


def backward(a: int = 20, b: int = 40) -> list[Op]:
    return [("compute", "fc", "backward", b * MS), ("compute", "conv", "backward", a * MS)]


def sync(group: str = "world", transfer: int = 5) -> list[Op]:
    return [("call", group, transfer * MS)]


def usual() -> list[Op]:
    return [("input_wait", MS), *forward(), *backward(), *sync(), ("optimizer", 2 * MS)]


def analyze(played: Played, **more: Any) -> WaitAnalysis:
    result = analyze_waits(played.lines, played.matches, played.clocks, played.hosts, **more)
    for call in result.calls:
        assert call.cause is None or call.cause.reason in LateReason
    return result


def cause_of(late: list[Op], *, rank: int = 2, hosts: dict[int, str] | None = None, **more: Any) -> LateCause:
    """Of four ranks' second step, `rank`'s is `late`."""
    programs: dict[int, list[Step]] = {one: [usual(), usual()] for one in range(4)}
    programs[rank] = [usual(), late]
    result = analyze(play(programs, WORLD, hosts=hosts), **more)
    first, second = result.calls
    assert first.late_rank is None
    assert second.late_rank == rank
    assert second.cause is not None
    assert second.cause.rank == rank
    return second.cause


@pytest.mark.parametrize(
    ("late", "reason", "layer", "phase"),
    [
        ([("input_wait", MS), *forward(), *backward(a=28), *sync()], "compute", "conv", "backward"),
        ([("input_wait", MS), *forward(b=28), *backward(), *sync()], "compute", "fc", "forward"),
        ([("input_wait", 9 * MS), *forward(), *backward(), *sync()], "input_wait", None, None),
        ([("input_wait", MS), ("idle", 8 * MS), *forward(), *backward(), *sync()], "idle", None, None),
        ([("input_wait", MS), ("copy", 8 * MS), *forward(), *backward(), *sync()], "copy", None, None),
        ([("optimizer", 8 * MS), *usual()], "optimizer", None, None),
    ],
)
def test_the_one_thing_that_differs_is_the_reason(
    late: list[Op], reason: str, layer: str | None, phase: str | None
) -> None:
    cause = cause_of(late)
    assert (cause.reason, cause.layer, cause.phase) == (reason, layer, phase)
    assert cause.excess_ns == 8 * MS
    assert cause.sentence.startswith("Rank 2 ") and "8.00 ms more than the others" in cause.sentence
    assert layer is None or f"{phase} of {layer}" in cause.sentence


def test_many_small_things_are_not_called_one() -> None:
    late = [
        ("input_wait", 3 * MS),
        ("idle", 2 * MS),
        ("copy", 2 * MS),
        *forward(12, 20),
        *backward(),
        *sync(),
    ]
    cause = cause_of(late)
    assert cause.reason == "unclear"
    assert cause.excess_ns == 8 * MS


def test_one_early_rank_does_not_make_another_one_late() -> None:
    programs: dict[int, list[Step]] = {rank: [usual(), usual()] for rank in range(4)}
    programs[3] = [usual(), [*forward(), *sync()]]
    programs[1] = [usual(), [("idle", MS // 10), *usual()]]
    _, call = analyze(play(programs, WORLD)).calls
    assert call.cause is not None
    assert (call.late_rank, call.cause.reason) == (1, "together")
    assert "rank 3 was early and waited 61.1 ms" in call.cause.sentence


SLOWER = [("input_wait", MS), *forward(13, 26), *backward(26, 52), *sync()]  # all layers by 30 %


def test_all_layers_alike_is_the_rank_not_a_layer() -> None:
    cause = cause_of(SLOWER)
    assert (cause.reason, cause.layer) == ("compute", None)
    assert "1.30 times as long, in all layers alike" in cause.sentence


def test_excess_here_and_there_names_no_layer() -> None:
    layers = [("compute", f"layer{k}", "forward", 10 * MS) for k in range(8)]
    programs: dict[int, list[Step]] = {rank: [[*layers, *sync()]] for rank in range(4)}
    programs[2] = [[*((*op[:3], (12 if k % 2 else 10) * MS) for k, op in enumerate(layers)), *sync()]]
    for around, reason in (
        (HostConditions(), "compute"),
        (HostConditions(disturbed={("node1", 0): "Other processes took 1 CPU"}, is_known=True), "disturbed"),
    ):
        hosts = {0: "node0", 1: "node0", 2: "node1", 3: "node0"}
        [call] = analyze(play(programs, WORLD, hosts=hosts), around=around).calls
        assert call.cause is not None
        assert (call.cause.reason, call.cause.layer, call.cause.excess_ns) == (reason, None, 8 * MS)


def test_remote_memory_is_named_where_it_is() -> None:
    words = "90 % of its memory is not on its NUMA node 0, most of it on node 1"
    around = HostConditions(remote={2: words}, is_known=True)
    assert cause_of(SLOWER, around=around).reason == "numa_remote"
    assert words in cause_of(SLOWER, around=around).sentence
    # Another rank's memory, or one slow layer alone, is not it.
    assert cause_of(SLOWER, around=HostConditions(remote={1: words}, is_known=True)).reason == "compute"
    one_layer = [("input_wait", MS), *forward(), *backward(a=28), *sync()]
    assert cause_of(one_layer, around=around).reason == "compute"


TWO_HOSTS = {0: "node0", 1: "node0", 2: "node1", 3: "node1"}


def test_a_neighbour_on_its_host_is_named() -> None:
    around = HostConditions(
        disturbed={("node1", 0): "Other processes (stress-ng) took 1.9 of 4 CPUs"}, is_known=True
    )
    alone = {0: "node0", 1: "node0", 2: "node1", 3: "node0"}
    cause = cause_of(SLOWER, hosts=alone, around=around)
    assert cause.reason == "disturbed"
    assert "stress-ng" in cause.sentence
    # It is not blamed for what it cannot do, but mentioned.
    sleeping = [("input_wait", MS), ("idle", 40 * MS), *forward(), *backward(), *sync()]
    cause = cause_of(sleeping, hosts=alone, around=around)
    assert cause.reason == "idle"
    assert "stress-ng" in cause.meanwhile and "stress-ng" not in cause.sentence


def test_what_disturbs_a_host_does_not_pick_one_rank_of_it() -> None:
    around = HostConditions(disturbed={("node1", 0): "Other processes took 1.9 of 4 CPUs"}, is_known=True)
    assert cause_of(SLOWER, hosts=TWO_HOSTS, around=around).reason == "compute"
    crowded = HostConditions(crowded=dict.fromkeys(range(4), "8 threads share CPUs 0-1"), is_known=True)
    assert cause_of(SLOWER, around=crowded).reason == "compute"


def test_too_few_cpus_hit_one_rank_now_and_another_then() -> None:
    programs: dict[int, list[Step]] = {
        rank: [usual(), *([*SLOWER, ("optimizer", 2 * MS)] if step == rank else usual() for step in range(4))]
        for rank in range(4)
    }
    around = HostConditions(crowded=dict.fromkeys(range(4), "8 threads share CPUs 0-1"), is_known=True)
    result = analyze(play(programs, WORLD), around=around)
    assert [call.late_rank for call in result.calls] == [None, 0, 1, 2, 3]
    assert {call.cause.reason for call in result.calls if call.cause} == {"oversubscribed"}
    assert result.pattern == "varying"


def test_layers_that_the_others_do_not_have() -> None:
    programs: dict[int, list[Step]] = {rank: [[*forward(), *sync()]] * 2 for rank in range(4)}
    programs[3] = [[*forward(), ("compute", "head", "forward", 30 * MS), *sync()]] * 2
    result = analyze(play(programs, WORLD))
    causes = [call.cause for call in result.calls]
    assert [(c.reason, c.layer, c.rank) for c in causes if c] == [("model_split", "head", 3)] * 2


def test_work_of_its_own_in_a_layer_that_all_have_is_no_split() -> None:
    # `body` runs nothing itself on the other ranks, but they have it: they run what is in it.
    inner: Op = ("compute", "body.conv", "forward", 10 * MS)
    programs: dict[int, list[Step]] = {rank: [[inner, *sync()]] for rank in range(4)}
    programs[1] = [[("compute", "body", "forward", 30 * MS), inner, *sync()]]
    [call] = analyze(play(programs, WORLD)).calls
    assert call.cause is not None
    assert (call.cause.reason, call.cause.layer, call.cause.rank) == ("compute", "body", 1)


def test_a_receiver_waits_for_what_the_sender_computes() -> None:
    first = [("compute", "conv", "forward", 30 * MS), ("send", 1, MS)]
    second = [("recv", 0, MS), ("compute", "fc", "forward", 10 * MS)]
    result = analyze(play({0: [first], 1: [second]}, {}))
    [call] = result.calls
    assert (call.collective, call.late_rank, call.max_wait_ns) == ("send", 0, 30 * MS)
    assert call.cause is not None
    assert (call.cause.reason, call.cause.layer) == ("upstream", "conv")
    assert result.stragglers == ()  # a pipeline's order is nobody's fault


def test_a_delay_is_followed_to_the_group_it_came_from() -> None:
    # Rank 3 is slow; rank 2 waits for it in their model group and so comes late to the data group.
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    programs: dict[int, list[Step]] = {}
    for rank in range(4):
        slow = 25 if rank == 3 else 0
        programs[rank] = [
            [*forward(10, 20 + slow), *sync(f"tp{rank // 2}", 1), *sync(f"dp{rank % 2}", 2)],
        ]
    result = analyze(play(programs, groups))
    by_group = {call.group: call for call in result.calls}
    assert by_group["tp0"].late_rank is None
    assert by_group["dp0"].late_rank == 2
    cause = by_group["dp0"].cause
    assert cause is not None
    assert (cause.rank, cause.reason, cause.layer, cause.group) == (3, "compute", "fc", "tp1")
    assert [(hop.group, hop.waiting_rank, hop.late_rank) for hop in cause.through] == [("tp1", 2, 3)]
    assert cause.sentence.startswith(
        "Rank 2 had waited for rank 3 in all_reduce on group tp1: rank 3 computed"
    )
    own = by_group["dp1"].cause
    assert own is not None and own.through == ()


def test_a_slow_transfer_elsewhere_is_no_rank_s_fault() -> None:
    # Both members of tp1 are 40 ms in a call whose transfer is slow.
    groups = {"tp0": (0, 1), "tp1": (2, 3), "world": (0, 1, 2, 3)}
    programs: dict[int, list[Step]] = {
        rank: [[*forward(), *sync(f"tp{rank // 2}", 40 if rank > 1 else 1), *sync()]] for rank in (0, 1, 2)
    }
    programs[3] = [[*forward(), *sync("tp1", 40), ("idle", 50_000), *sync()]]
    result = analyze(play(programs, groups))
    call = next(one for one in result.calls if one.group == "world")
    assert call.cause is not None
    assert (call.late_rank, call.cause.reason, call.cause.group) == (3, "exposed_comm", "tp1")
    assert "was still in all_reduce on group tp1" in call.cause.sentence


def test_calls_in_the_background_do_not_hide_where_the_delay_began() -> None:
    # The first bucket makes nobody's main line wait, so the second one's lateness has the same reason.
    def step(loading: int) -> list[Op]:
        return [
            ("input_wait", loading * MS),
            *(("compute", "fc", "backward", 40 * MS), ("queue", "world", 5 * MS)),
            *(("compute", "conv", "backward", 40 * MS), ("queue", "world", 5 * MS), ("wait",)),
        ]

    programs: dict[int, list[Step]] = {rank: [step(1), step(31 if rank == 1 else 1)] for rank in range(4)}
    result = analyze(play(programs, WORLD))
    late = [call for call in result.calls if call.late_rank is not None]
    assert [(call.late_rank, call.cause.reason) for call in late if call.cause] == [(1, "input_wait")] * 2
    assert [call.lateness_ns for call in late] == [30 * MS] * 2
    assert [one.held_ns for one in result.stragglers] == [60 * MS]


def test_one_delay_of_two_calls_at_the_same_time_counts_once() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(4)}
    programs[1] = [[("idle", 29 * MS), *usual()]]
    played = play(programs, WORLD)
    [one] = played.matches
    played.matches.append(structs.replace(one, key=one.key._replace(group="other")))
    result = analyze(played)
    [straggler] = result.stragglers
    assert (straggler.rank, straggler.times, straggler.held_ns) == (1, 2, 29 * MS)
    assert result.ranks[1].held_ns == 29 * MS


def test_a_step_that_began_late_says_so() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(4)}
    result = analyze(play(programs, WORLD, start={0: 7 * MS}))
    [call] = result.calls
    assert call.cause is not None
    assert (call.late_rank, call.cause.reason, call.cause.excess_ns) == (0, "started_late", 7 * MS)


def test_the_step_before_tells_why_the_first_traced_one_began_late() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(4)}
    waited = {rank: 8 * MS if rank == 0 else MS for rank in range(4)}
    times = {
        rank: RankStepTimes(
            step=np.array([-1, 0]),
            outside_backward=np.array([-1, -1]),
            input_wait=np.array([own, 0]),
            is_usual=np.array([False, False]),
        )
        for rank, own in waited.items()
    }
    [call] = analyze(play(programs, WORLD, start={0: 7 * MS}), times=times).calls
    assert call.cause is not None
    assert (call.cause.reason, call.cause.rank, call.cause.excess_ns) == ("input_wait", 0, 7 * MS)
    assert "step before" in call.cause.sentence


def test_waiting_and_transfer_are_summed_per_group_and_rank() -> None:
    programs: dict[int, list[Step]] = {rank: [usual(), usual()] for rank in range(4)}
    programs[1] = [[*usual()], [("idle", 8 * MS), *usual()]]
    result = analyze(play(programs, WORLD))
    [group] = result.groups
    assert (group.num_ranks, group.num_calls, group.late_counts) == (4, 2, ((1, 1),))
    assert group.wait_ns == 3 * 8 * MS // 4 // 2  # three of four ranks, one of two steps
    assert group.transfer_ns == 5 * MS
    assert group.max_wait_ns == 8 * MS
    [reason] = group.reasons
    assert (reason.reason, reason.rank, reason.share) == ("idle", 1, 1.0)
    assert [rank.exposed_wait_ns for rank in result.ranks] == [4 * MS, 0, 4 * MS, 4 * MS]
    assert [rank.held_ns for rank in result.ranks] == [0, 4 * MS, 0, 0]


def test_the_split_has_communication_where_its_layer_is() -> None:
    def step(rank: int) -> list[Op]:
        first: Op = ("compute", "conv", "forward", (10 if rank else 14) * MS)
        return [first, *sync("tp", 1), *backward(20, 40), *sync("dp", 6)]

    result = analyze(play({rank: [step(rank)] * 2 for rank in range(2)}, {"tp": (0, 1), "dp": (0, 1)}))
    rows = {(row.group, row.layer, row.phase): row for row in result.split}
    tp = rows["tp", "conv", "forward"]
    assert (tp.compute_ns, tp.exposed_comm_ns) == (12 * MS, 3 * MS)
    assert (tp.wait_ns, tp.transfer_ns) == (2 * MS, MS)
    dp = rows["dp", "conv", "backward"]
    assert (dp.compute_ns, dp.exposed_comm_ns, dp.wait_ns, dp.transfer_ns) == (20 * MS, 6 * MS, 0, 6 * MS)
    assert rows[None, "fc", "backward"].compute_ns == 40 * MS
    assert set(rows) == {("tp", "conv", "forward"), ("dp", "conv", "backward"), (None, "fc", "backward")}


def test_a_bucket_belongs_to_the_layers_whose_gradients_it_carries() -> None:
    def step(rank: int) -> list[Op]:
        return [*forward(), *backward(20, 40), ("idle", (8 if rank else 0) * MS), *sync("dp", 4)]

    played = play({rank: [step(rank)] for rank in range(2)}, {"dp": (0, 1)})
    # The calls are of 4096 bytes: 1,024 floats, a quarter of them conv's.
    parameters = (("conv", (256,)), ("fc", (700, 68)))
    rows = {(row.group, row.layer): row for row in analyze(played, parameters=parameters).split if row.group}
    assert set(rows) == {("dp", "conv"), ("dp", "fc")}
    assert (rows["dp", "conv"].wait_ns, rows["dp", "fc"].wait_ns) == (MS, 3 * MS)
    assert (rows["dp", "conv"].transfer_ns, rows["dp", "fc"].transfer_ns) == (MS, 3 * MS)
    assert rows["dp", "fc"].phase == "backward"
    other = analyze(played, parameters=(("conv", (255,)), ("fc", (768,))))  # does not fit: the last layer's
    assert {row.layer for row in other.split if row.group} == {"conv"}


def test_a_rank_that_is_always_late_is_persistent() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] * 6 for rank in range(4)}
    programs[2] = [[("idle", 8 * MS), *usual()]] * 6
    result = analyze(play(programs, WORLD))
    assert [(one.step, one.rank, one.times) for one in result.stragglers] == [
        (step, 2, 1) for step in range(6)
    ]
    [straggler] = result.persistent
    assert (straggler.rank, straggler.times, straggler.num_steps) == (2, 6, 6)
    assert straggler.p_value == pytest.approx(4 / 4**6)
    assert straggler.held_ns == 8 * MS
    assert result.pattern == "persistent"


def times_of(values: np.ndarray[Any, Any]) -> dict[int, RankStepTimes]:
    num = values.shape[1]
    return {
        rank: RankStepTimes(
            step=np.arange(num),
            outside_backward=own.astype(np.int64),
            input_wait=np.full(num, -1),
            is_usual=np.ones(num, dtype=bool),
        )
        for rank, own in enumerate(values)
    }


def test_untraced_steps_confirm_what_one_traced_step_cannot_tell() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(4)}
    programs[2] = [[("idle", 8 * MS), *usual()]]
    played = play(programs, WORLD)
    alone = analyze(played)
    assert (alone.pattern, alone.persistent) == (None, ())
    noise = np.random.default_rng(0).normal(0, MS / 4, (4, 40))
    slow = np.array([0, 0, 8 * MS, 0])[:, None]
    confirmed = analyze(played, times=times_of(30 * MS + noise + slow))
    assert confirmed.pattern == "persistent"
    [straggler] = confirmed.persistent
    assert straggler.always_on is not None
    assert (straggler.always_on.times, straggler.always_on.num_steps) == (40, 40)
    assert straggler.always_on.excess_ns == pytest.approx(8 * MS, rel=0.1)
    little = analyze(played, times=times_of(30 * MS + noise + slow / 8))  # but far less than it was late
    assert (little.pattern, little.persistent) == (None, ())
    other = analyze(played, times=times_of(30 * MS + noise + slow[::-1]))  # it is another rank there
    assert (other.pattern, other.persistent) == (None, ())
    assert always_on(times_of(30 * MS + noise)) == {}


def test_chances_are_those_of_a_fair_draw() -> None:
    assert binomial_tail(0, 10, 0.5) == 1
    assert binomial_tail(10, 10, 0.5) == pytest.approx(2**-10)
    assert binomial_tail(5, 8, 1 / 8) == pytest.approx(
        sum(c * 7 ** (8 - k) for k, c in ((5, 56), (6, 28), (7, 8), (8, 1))) / 8**8
    )


def test_clocks_that_leave_it_open_name_nobody() -> None:
    clocks = ClockFit(
        reference="node0",
        offset_ns={"node0": 0, "node1": 3_000_000_000},
        residual_ns={"node0": 0, "node1": MS},
    )
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(4)}
    programs[2] = [[("idle", MS // 2), *usual()]]
    unsure = analyze(play(programs, WORLD, hosts=TWO_HOSTS, clocks=clocks))
    [call] = unsure.calls
    assert (call.late_rank, call.cause, call.uncertain) == (None, None, True)
    assert unsure.num_uncertain == 1
    assert unsure.groups[0].late_counts == ()
    assert unsure.stragglers == ()
    programs[2] = [[("idle", 8 * MS), *usual()]]
    sure = analyze(play(programs, WORLD, hosts=TWO_HOSTS, clocks=clocks))
    assert [(one.late_rank, one.uncertain) for one in sure.calls] == [(2, False)]
    assert sure.calls[0].cause is not None and sure.calls[0].cause.reason == "idle"


def reasons(missing: tuple[Missing, ...]) -> str:
    return " | ".join(f"{figure_text(one)}: {cause_text(one)}" for one in missing)


def test_what_cannot_be_told_is_said() -> None:
    nothing = analyze_waits(LineRecord(), [], ClockFit(reference=""), {})
    assert reasons(nothing.missing) == "wait states: no step was traced"
    assert (nothing.calls, nothing.pattern) == ((), None)
    lonely = play({0: [forward()]}, {})
    assert "one rank, which waits for no other" in reasons(analyze(lonely, world_size=1).missing)
    of_eight = reasons(analyze(lonely, world_size=8).missing)
    assert "1 of 8 ranks were traced" in of_eight and "one rank was traced" in of_eight
    silent = play({0: [forward()], 1: [forward()]}, {})
    assert "no call could be matched" in reasons(analyze(silent).missing)


def test_a_rank_without_a_line_costs_the_reason_only() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(4)}
    programs[2] = [[("idle", 8 * MS), *usual()]]
    played = play(programs, WORLD)
    del played.lines.lines[0][1]
    result = analyze(played)
    [call] = result.calls
    assert (call.late_rank, call.lateness_ns, call.cause) == (2, 8 * MS, None)
    assert "no step of rank 1" in reasons(result.missing)


def test_ranks_that_traced_different_steps_are_said() -> None:
    programs: dict[int, list[Step]] = {rank: [usual()] for rank in range(2)}
    played = play(programs, {"world": (0, 1)})
    line = played.lines.lines[0][1]
    [span] = line.steps
    played.lines.lines[0][1] = structs.replace(line, steps=(structs.replace(span, step=7),))
    assert "traced different steps" in reasons(analyze(played).missing)


TRACES = Path(__file__).parents[3] / "data" / "traces"


def waits_of_import(source: RunReader) -> WaitAnalysis:
    """What `analyze_run` puts together, of one window without always-on figures."""
    lines, record, hosts = LineRecord(), CommRecord(), {}
    for summary in source.summaries():
        facts = window_facts(summary)
        table = source.timeline(facts.rank, facts.window)
        spans, hosts[facts.rank] = spans_of(table), facts.host
        act, steps = bd.activity(spans, facts), bd.analyzed_steps(spans, facts)
        windows = one_window(Window(facts, table, facts.groups))
        record.add(windows)
        lines.add(windows, spans, act, [steps])
    comm = analyze_collectives(record, hosts, len(hosts))
    return analyze_waits(lines, comm.matches, comm.clocks, hosts, world_size=len(hosts))


def test_eight_gpus_wait_for_rank_seven(tmp_path: Path) -> None:
    import_traces([TRACES / "dlrm_v100_8ranks"], tmp_path / "run")
    waits = waits_of_import(RunReader(tmp_path / "run"))
    assert sum(call.transfer_ns for call in waits.calls) == 217_000
    assert Counter(call.late_rank for call in waits.calls) == {7: 5, 5: 2, 4: 1}
    [step] = waits.stragglers
    assert (step.rank, step.times, step.num_calls) == (7, 5, 8)
    worst = max(waits.calls, key=lambda call: call.wait_ns)
    assert worst.cause is not None
    assert (worst.late_rank, worst.cause.reason) == (7, "started_late")
    assert sum(group.transfer_ns for group in waits.groups) == 217_000
    assert (waits.pattern, waits.num_uncertain) == (None, 0)
