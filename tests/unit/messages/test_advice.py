"""What a report says of other frameworks' runs: their own words, and no zero for what is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perfscope.analysis import advice
from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.messages.advice import training_advice
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.build import build_report
from perfscope.reports.document import build_document
from perfscope.reports.text import render_text
from perfscope.rundir.records import RankRecord, rank_record
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
STEP = [(k, 10 * k * MS, 10 * (k + 1) * MS) for k in range(6)]
TF_REASON = "TensorFlow's profiler crashes now and then when several workers train together"
# Words that help nobody but users of torch.
TORCH_WORDS = ("bucket_cap_mb", "no_sync", "torchrun", "non_blocking", ".item()", "nn.Module", "foreach")


def records(*documents: dict[str, Any]) -> dict[int, RankRecord]:
    """rank.json of ranks 0, 1, ..."""
    return {rank: rank_record(document) for rank, document in enumerate(documents)}


FRAMEWORKS: dict[str, dict[str, Any]] = {
    "tensorflow": {"name": "tensorflow", "version": "2.21.0"},
    "keras-tensorflow": {"name": "keras", "version": "3.15.1", "backend": "tensorflow"},
    "keras-jax": {"name": "keras", "version": "3.15.1", "backend": "jax"},
    "jax": {"name": "jax", "version": "0.10.2"},
    "mxnet": {"name": "mxnet", "version": "1.9.1"},
    "mpi4py": {"name": "mpi4py", "version": "4.1.2"},
    "python": {"name": "python", "version": ""},
    "never-heard-of": {"name": "never-heard-of", "version": "1"},
}


def traced(path: Path, framework: str, ranks: dict[int, list[dict[str, Any]]], **meta: Any) -> SyntheticRun:
    """Six traced steps of 10 ms of a framework; `ranks` gives the spans of one."""
    run = SyntheticRun(path, world_size=len(ranks))
    for rank, spans in ranks.items():
        told = FRAMEWORKS.get(framework, {"name": framework})
        run.rank(rank, framework=told, world_size=len(ranks), **meta)
        repeated = [
            {**one, "start_ns": one["start_ns"] + start, "seq": number if "seq" in one else None}
            for number, start, _ in STEP
            for one in spans
        ]
        run.window(rank, repeated, STEP)
    return run


def untraced(path: Path, framework: str, num_steps: int = 50, **meta: Any) -> SyntheticRun:
    run = SyntheticRun(path)
    run.rank(0, framework=FRAMEWORKS[framework], world_size=1, **meta)
    run.steps(0, [10 * MS] * num_steps)
    return run


def analysis_of(run: SyntheticRun) -> RunAnalysis:
    return analyze_run(run.read())


def missing(run: SyntheticRun) -> dict[str, str]:
    return {figure_text(one): cause_text(one) for one in analysis_of(run).missing}


def text_of(run: SyntheticRun) -> str:
    return " ".join(render_text(build_report(analysis_of(run), None)).split())


def by_id(run: SyntheticRun) -> dict[str, Finding]:
    return {one.id: one for one in analysis_of(run).findings}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bound", ["communication", "input and gaps"])
def test_no_run_of_another_framework_is_given_the_advice_of_torch(
    tmp_path: Path, framework: str, bound: str
) -> None:
    if bound == "communication":
        one = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0, in_bytes=10**6)]
        run = traced(tmp_path, framework, {0: one, 1: one})
    else:
        parts = [span(0, 2 * MS, "compute"), span(2 * MS, 2 * MS, "copy"), span(4 * MS, 3 * MS, "input")]
        run = traced(tmp_path, framework, {0: parts})
    analysis = analysis_of(run)
    text = render_text(build_report(analysis, None))
    assert [word for word in TORCH_WORDS if word in text] == []
    for finding in analysis.findings:
        assert finding.text.action.endswith(".") and finding.text.detail.endswith(".")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_words_of_torch_stand_in_the_tables_of_others(framework: str) -> None:
    meta = records({"framework": FRAMEWORKS[framework]})
    words = (*structs.astuple(advice.training(meta)), *structs.astuple(advice.communication(meta)))
    assert [word for word in TORCH_WORDS for text in words if word in str(text)] == []


def test_every_sentence_of_the_tables_ends_and_is_no_longer_than_two_lines() -> None:
    sentences = ("faster_input", "faster_copies", "quicker_update", "fewer_launches", "shorter_gaps", "gaps")
    for name in FRAMEWORKS:
        words = training_advice(name)
        for sentence in sentences:
            text = getattr(words, sentence)
            assert text.endswith(".") and len(text) < 200, (name, sentence)


def test_runs_that_do_not_say_and_runs_of_torch_get_the_words_of_torch() -> None:
    said = records({"framework": {"name": "torch", "version": "2.13"}})
    assert advice.training(records({})) is advice.training(said) is training_advice("torch")
    assert "bucket_cap_mb" in advice.communication({}).merge
    several = records({"framework": {"name": "torch"}}, {"framework": {"name": "jax"}})
    assert "DataLoader" not in advice.training(several).faster_input


def test_advice_about_calls_is_that_of_the_library_that_makes_them() -> None:
    torch: dict[str, Any] = {
        "framework": {"name": "torch"},
        "groups": [{"name": "0", "backend": "gloo", "ranks": [0, 1]}],
    }
    horovod = {**torch, "groups": [{"name": "global", "backend": "horovod gloo", "ranks": [0, 1]}]}
    both = {
        **torch,
        "groups": [*torch["groups"], {"name": "world", "backend": "mpi", "ranks": [0, 1]}],
        "mpi_library": "MPICH",
    }
    assert "bucket_cap_mb" in advice.communication(records(torch), ("0",)).one_call
    assert "HOROVOD_FUSION_THRESHOLD" in advice.communication(records(horovod), ("global",)).merge
    assert "bucket_cap_mb" in advice.communication(records(both), ("0",)).one_call
    assert "Iallreduce" in advice.communication(records(both), ("world",)).overlap
    keras: dict[str, Any] = {"framework": {"name": "keras", "backend": "tensorflow"}}
    assert "bytes_per_pack" in advice.communication(records(keras)).one_call


def test_what_a_trace_cannot_tell_is_absent_and_not_zero(tmp_path: Path) -> None:
    told = [{"what": "input wait", "reason": "JAX has no data loader of its own"}]
    run = traced(tmp_path / "jax", "jax", {0: [span(0, 9 * MS, "compute")]}, missing=told)
    analysis = analysis_of(run)
    parts = build_document(analysis)["ranks"][0]["breakdown_ns"]  # type: ignore[index]
    assert (parts["input_wait"], parts["optimizer"], parts["copy"]) == (None, None, 0)
    reasons = {figure_text(one): cause_text(one) for one in analysis.missing}
    assert reasons["input wait"] == "JAX has no data loader of its own"
    assert "named_scope" in reasons["optimizer of the traced steps"]
    seen = [span(0, 8 * MS, "compute"), span(8 * MS, MS, "compute", phase="optimizer")]
    parts = build_document(analysis_of(traced(tmp_path / "named", "jax", {0: seen})))["ranks"][0]  # type: ignore[index]
    assert parts["breakdown_ns"]["optimizer"] == MS
    torch = analysis_of(traced(tmp_path / "torch", "torch", {0: [span(0, 9 * MS, "compute")]}))
    assert torch.ranks[0].unknown == ()


def test_calls_of_layers_are_absent_where_no_trace_marks_them(tmp_path: Path) -> None:
    spans = [span(0, 9 * MS, "compute", layer="conv", phase="forward")]
    (layer,) = analysis_of(traced(tmp_path / "tf", "tensorflow", {0: spans})).layers
    assert layer.calls is None
    mark = span(0, 9 * MS, "annotation", layer="conv", phase="forward", name="conv")
    (layer,) = analysis_of(traced(tmp_path / "torch", "torch", {0: [mark, *spans]})).layers
    assert layer.calls == 1


def test_that_layers_are_missing_is_said_once_by_who_knows_why(tmp_path: Path) -> None:
    own = [{"what": "layers", "reason": "MXNet's profiler records operator types"}]
    run = traced(tmp_path, "mxnet", {0: [span(0, 9 * MS, "compute")]}, missing=own)
    entries = [one for one in analysis_of(run).missing if "layers" in figure_text(one)]
    assert [cause_text(one) for one in entries] == ["MXNet's profiler records operator types"]
    finding = by_id(run)["compute_bound"]
    assert (
        "names operators, not layers" in finding.text.detail and "largest layers" not in finding.text.action
    )


def test_windows_that_the_framework_forbids_are_no_matter_of_no_trace(tmp_path: Path) -> None:
    own = [{"what": "windows (layers, phases, collectives in time)", "reason": TF_REASON}]
    run = untraced(tmp_path, "tensorflow", missing=own)
    found = missing(run)
    assert found["step breakdown, timeline, layers and collectives"] == f"no window was traced: {TF_REASON}"
    assert [what for what, why in found.items() if TF_REASON in why] == [
        "step breakdown, timeline, layers and collectives"
    ]
    action = by_id(run)["not_traced"].text.action
    assert "PERFSCOPE_TF_PROFILE=1" in action and "--no-trace" not in action


def test_a_short_run_is_not_blamed_on_what_was_noted_of_its_framework(tmp_path: Path) -> None:
    note = "MXNet is retired: it went to the Apache Attic in September 2023"
    run = untraced(tmp_path, "mxnet", 3, notes=[note])
    assert (
        "the run ended before the first one (3 steps"
        in missing(run)["step breakdown, timeline, layers and collectives"]
    )
    assert by_id(run)["not_traced"].text.action == "Train for more than 6 steps, to reach a traced window."
    assert f"{note}." in text_of(run)


def test_no_trace_is_named_where_it_was_given(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, options={"trace": False})
    run.rank(0, framework=FRAMEWORKS["jax"])
    run.steps(0, [10 * MS] * 50)
    assert "Run again without `--no-trace`" in by_id(run)["not_traced"].text.action


def test_notes_of_probes_and_readers_are_in_the_text_once(tmp_path: Path) -> None:
    one = [span(0, 9 * MS, "compute")]
    run = traced(tmp_path, "jax", {0: one, 1: one}, notes=["steps are calls of train up to step 7"])
    for rank, share in ((0, 98), (1, 97)):
        run.window(rank, one, STEP[:1], notes=[f"{share}% of the operators' time has a layer"])
    text = text_of(run)
    assert text.count("Steps are calls of train up to step 7.") == 1
    assert text.count("of the operators' time has a layer") == 1
    assert "98% of the operators' time has a layer (window 0 of rank 0; much the same in 1 more)." in text


def test_a_program_into_which_nothing_looks_is_not_all_computation(tmp_path: Path) -> None:
    run = traced(tmp_path / "alone", "python", {0: [span(0, 10 * MS, "compute")]})
    run.steps(0, [10 * MS] * 50)
    analysis = analysis_of(run)
    assert analysis.ranks[0].breakdown_ns is None and analysis.what_ifs == ()
    (reason,) = [cause_text(one) for one in analysis.missing if figure_text(one).startswith("step breakdown")]
    assert reason.startswith("no profiler looks into this program")
    assert "--stacks" in analysis.findings[0].text.action
    calls = [span(0, 9 * MS, "compute"), comm(9 * MS, MS, 0)]
    verdict = analysis_of(traced(tmp_path / "mpi", "mpi4py", {0: calls, 1: calls})).findings[0]
    assert (
        "90.0 % of the mean step (9.00 ms of 10.0 ms) is spent between its calls of MPI" in verdict.text.title
    )


def test_devices_of_one_process_are_not_called_ranks(tmp_path: Path) -> None:
    spans = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0, group="jax", group_size=4)]
    run = traced(tmp_path / "devices", "jax", {0: spans}, num_devices=4)
    assert missing(run)["transfer and wait of all_reduce on group jax"] == (
        "its 4 devices are of one process: the calls of single devices are not matched"
    )
    verdict = analysis_of(run).findings[0]
    assert "the 4 devices belong to one process" in verdict.text.detail
    assert "Trace every rank" not in verdict.text.action
    alone = traced(tmp_path / "ranks", "jax", {0: spans})
    assert missing(alone)["transfer and wait of all_reduce on group jax"] == (
        "1 of the group's 4 ranks were traced"
    )


def test_steps_of_a_program_that_runs_ahead_share_their_time(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "keras")
    run.rank(0, framework=FRAMEWORKS["keras-jax"], world_size=1, root={"data_parallel": True, "dp_size": 1})
    handed_over = [100 * MS] * 3 + ([MS // 10] * 19 + [198 * MS + MS // 10]) * 2  # 10 ms of work a step
    run.steps(0, handed_over, samples=[16] * len(handed_over))
    analysis = analysis_of(run)
    assert analysis.step_ns is not None and analysis.step_ns.median == 10 * MS
    assert analysis.throughput_samples_per_s == pytest.approx(1600)
    assert any("runs ahead of their work" in remark for remark in analysis.remarks)
    assert sum(analysis.step_series[0]) == sum(handed_over)
    run.rank(0, framework={"name": "torch"}, world_size=1)
    unchanged = analysis_of(run)
    assert unchanged.step_ns is not None and unchanged.step_ns.median == MS // 10 and unchanged.remarks == ()


def test_throughput_is_missing_for_a_reason_of_the_framework(tmp_path: Path) -> None:
    assert "perfscope.step(samples)" in missing(untraced(tmp_path / "own", "mpi4py"))["throughput"]
    assert "the model's input" not in missing(untraced(tmp_path / "jax", "jax"))["throughput"]


def test_too_many_threads_are_turned_down_by_the_frameworks_own_setting() -> None:
    assert training_advice("tensorflow").threads.format(1) == "TF_NUM_INTRAOP_THREADS=1"
    assert training_advice("jax").threads == ""  # XLA takes the CPUs it may run on: only binding helps
    assert "torchrun" in training_advice("torch").threads.format(1)


def test_side_by_side_layers_are_said_to_add_up_to_more_than_the_step(tmp_path: Path) -> None:
    spans = [span(0, 9 * MS, "compute", layer=name, phase="forward", lane=lane) for name, lane in LAYERS]
    text = text_of(traced(tmp_path / "devices", "jax", {0: spans}))
    assert "their shares add up to more than the step" in text
    alone = text_of(traced(tmp_path / "one", "jax", {0: spans[:1]}))
    assert "their shares add up" not in alone


LAYERS = (("a", 100), ("b", 300))


def test_words_of_unknown_frameworks_are_true_of_any() -> None:
    general = structs.asdict(training_advice("never-heard-of"))
    named = ("torch", "tf.", "Keras", "jax", "MXNet", "MPI")
    assert not any(word in str(text) for text in general.values() for word in named if text != "")
