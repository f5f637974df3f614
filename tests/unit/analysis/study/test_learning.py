"""Settings ranked by what their runs took to a target, or by goodput: known winners, and no winner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.analysis.learning import LearningPoint, LearningResult, NoiseScale, ToTarget
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import LearningRanking, RunEntry, StudyAnalysis
from perfscope.reports.study.build import build_study_report
from perfscope.reports.text import render_text
from perfscope.vocabulary.comparison import ProblemKind, RankBasis
from tests.support.study_entries import entry

MS = 1_000_000
TARGET = "accuracy=0.9"


def reached(ms: float | None, joules: float | None = None, target: str = TARGET) -> LearningResult:
    """A run that took so long to the target; None: it did not reach it."""
    end = round((ms or 50) * MS)
    points = tuple(
        LearningPoint(
            step=step, samples=32 * step, train_ns=at, bytes=1e3 * step, loss=1.0, accuracy=top, top5=1.0
        )
        for step, at, top in ((1, end // 2, 0.5), (2, end, 0.9 if ms else 0.6))
    )
    to_target = None
    if ms is not None:
        to_target = ToTarget(step=2, samples=64, train_ns=end, bytes=2e3, joules=joules)
    return LearningResult(points=points, num_held_out=100, target=target, to_target=to_target)


def noisy(samples: float) -> LearningResult:
    noise = NoiseScale(samples=samples, num_measurements=3, efficiency=0.5, goodput=50.0, by_batch=())
    return LearningResult(noise=noise)


def batches(**others: Any) -> StudyAnalysis:
    """Batch 32 at 100 and batch 128 at 200 samples/s, with noise scales of 60 and 40 samples.

    Args:
        others: what the record of the second says otherwise.
    """
    entries = []
    for batch, speed, scale, changes in ((32, 100.0, 60.0, {}), (128, 200.0, 40.0, others)):
        record = {**RECORD, "effective_batch": batch, **changes}
        entries += [
            entry(
                f"{batch}-{seed}",
                scheme=record["full_name"],
                speed=speed + seed,
                batch=batch,
                bench={"learning": noisy(scale)},
                run={"scheme": record},
            )
            for seed in range(3)
        ]
    return analyze_study(entries, by="batch")


def runs(scheme: str, *learned: LearningResult | None, speed: float = 100.0, **bench: Any) -> list[RunEntry]:
    return [
        entry(f"{scheme}-{seed}", scheme=scheme, speed=speed, bench={"learning": one, **bench})
        for seed, one in enumerate(learned)
    ]


def analyzed(*entries: list[RunEntry], **options: Any) -> StudyAnalysis:
    return analyze_study([one for of in entries for one in of], **options)


def ranking(study: StudyAnalysis) -> LearningRanking:
    (schemes,) = study.schemes
    assert schemes.learning is not None
    return schemes.learning


RECORD: dict[str, Any] = {
    "full_name": "dp.ddp",
    "input_shape": [3, 16, 16],
    "dtype": "float32",
    "threads": 1,
    "axes": {"parallelism": "data", "synchrony": "synchronous"},
    "learning_rate": {"rule": "none", "value": 0.1},
}
FAST = runs("a", reached(100), reached(102), reached(101), speed=50.0)
SLOW = runs("b", reached(200), reached(203), reached(205), speed=90.0)


def test_the_first_at_the_target_wins_although_another_processes_more_samples() -> None:
    study = analyzed(FAST, SLOW)
    found = ranking(study)
    assert (found.basis, found.target, found.level) == (RankBasis.TIME, TARGET, False)
    assert [row.title for row in found.rows] == ["a", "b"] and found.rows[0].value == 101 * MS
    assert found.ratio == pytest.approx(203 / 101) and found.interval is not None
    assert found.interval.low < 203 / 101 < found.interval.high
    assert study.headline.startswith("By training time to accuracy=0.9 a wins over b: 101 ms against 203 ms")
    assert study.action.startswith("Use a.")
    verdict = study.schemes[0].verdict
    assert verdict is not None and verdict.winner == "a" and "By samples/s alone: b wins" in verdict.why


def test_seeds_that_overlap_tell_nothing() -> None:
    study = analyzed(FAST, runs("b", reached(90), reached(104), reached(115)))
    found = ranking(study)
    assert found.level is True and "cannot tell a from b" in study.headline
    assert study.schemes[0].verdict is not None and study.schemes[0].verdict.winner == ""
    assert "more seeds" in study.action


def test_one_run_of_each_tells_nothing() -> None:
    study = analyzed(runs("a", reached(100)), runs("b", reached(300)))
    assert ranking(study).level is None and "cannot tell a from b" in study.headline
    assert "--seeds 5" in study.action


def test_settings_whose_runs_miss_the_target_come_last() -> None:
    study = analyzed(
        FAST, runs("b", reached(10), reached(None), reached(11)), runs("c", *[reached(None)] * 3)
    )
    found = ranking(study)
    assert [(row.title, row.num_reached) for row in found.rows] == [("a", 3), ("b", 2), ("c", 0)]
    assert found.level is None and found.rows[2].value is None
    assert "Reached by b in 2 of 3, by c in 0 of 3 runs." in study.headline
    clear = ranking(analyzed(FAST, runs("c", *[reached(None)] * 3)))
    assert clear.level is False and "a wins over c: 101 ms against not reached" in clear.headline


def test_energy_ranks_where_it_is_known_of_all() -> None:
    cheap = runs("b", reached(200, 5.0), reached(203, 5.1))
    dear = runs("a", reached(100, 9.0), reached(101, 9.2))
    found = ranking(analyzed(cheap, dear, rank_by=RankBasis.ENERGY))
    assert found.basis is RankBasis.ENERGY and found.rows[0].title == "b" and not found.note
    unknown = ranking(analyzed(cheap, FAST, rank_by=RankBasis.ENERGY))
    assert unknown.basis is RankBasis.TIME and "energy to the target is not known" in unknown.note


def test_goodput_ranks_batches_by_one_noise_scale() -> None:
    """50 samples, the median: 101 * 50 / 82 = 61.6 against 201 * 50 / 178 = 56.5 samples/s."""
    study = batches()
    found = ranking(study)
    assert found.basis is RankBasis.GOODPUT
    assert [row.value for row in found.rows] == pytest.approx([101 * 50 / 82, 201 * 50 / 178])
    assert [row.title for row in found.rows] == ["batch 32", "batch 128"] and found.level is False
    assert "By goodput" in study.headline and "samples/s do not compare learning" in study.headline
    assert study.action.startswith("Compare losses after equally many samples before choosing batch 32.")


@pytest.mark.parametrize(
    "others",
    [
        {"full_name": "dp.packed"},
        {"full_name": "dp.ddp+int8"},
        {"optimizer": "adamw"},
        {"learning_rate": {"rule": "none", "value": 0.2}},
        {"learning_rate": {"rule": "linear", "value": 0.4}},
        {"axes": {"parallelism": "data", "synchrony": "asynchronous"}},
    ],
)
def test_goodput_ranks_nothing_but_batches(others: dict[str, Any]) -> None:
    study = batches(**others)
    assert study.schemes[0].learning is None
    assert "batch 128 processes the most samples" in study.headline
    assert "samples/s do not compare learning" in study.headline


def test_rates_of_one_rule_are_no_other_setting() -> None:
    record = {"learning_rate": {"rule": "linear", "value": 0.1 * 4}}
    (four,) = {run.batchless_key for run in batches(**record).runs if run.batch == 128}
    one = entry(
        "x",
        run={"scheme": {**RECORD, "effective_batch": 32, "learning_rate": {"rule": "linear", "value": 0.1}}},
    )
    assert analyze_study([one]).runs[0].batchless_key == four


def test_the_share_that_reached_the_target_decides_not_the_count_missed() -> None:
    study = analyzed(
        runs("a", reached(None)), runs("b", *[reached(20 + at) for at in range(8)], *[reached(None)] * 2)
    )
    found = ranking(study)
    assert [row.title for row in found.rows] == ["b", "a"] and "none wins" not in study.headline
    tied = ranking(analyzed(runs("a", *[reached(None)] * 2), runs("b", reached(20), *[reached(None)])))
    assert [row.title for row in tied.rows] == ["b", "a"]
    none = analyzed(runs("a", reached(None)), runs("b", reached(None)))
    assert "none wins: no run reached the target" in none.headline


def test_no_energy_is_unknown_and_reaches_the_target_all_the_same() -> None:
    zero = runs("a", reached(100, 0.0), reached(101, 0.0))
    found = ranking(analyzed(zero, runs("b", reached(200, 5.0), reached(203, 5.1)), rank_by=RankBasis.ENERGY))
    assert found.basis is RankBasis.TIME and "not known" in found.note
    assert [(row.title, row.num_reached) for row in found.rows] == [("a", 2), ("b", 2)]


def test_no_time_of_a_run_that_reached_the_target_ranks_nothing() -> None:
    untimed = LearningResult(target=TARGET, to_target=ToTarget(step=2, samples=64, train_ns=None, bytes=None))
    study = analyzed(FAST, runs("b", untimed, untimed, speed=90.0))
    assert study.schemes[0].learning is None and "b wins" in study.headline


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"target": TARGET, "steps": 40}, {"target": TARGET, "steps": 400}),
        ({"schedule": "cosine", "steps": 40}, {"schedule": "cosine", "steps": 80}),
        ({"evaluate_every": 4}, {"evaluate_every": 8}),
        ({"held_out": 2048}, {"held_out": 64}),
        ({"moving_rate": 0.1}, {"moving_rate": 0.2}),
        ({"dropout": 0.0}, {"dropout": 0.1}),
    ],
)
def test_other_settings_are_no_repeats(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert len(keys_of(first, second)) == 2


def test_steps_alone_are_the_same_setting() -> None:
    assert len(keys_of({"steps": 40}, {"steps": 80, "held_out": 2048, "dropout": 0.0})) == 1


def keys_of(*records: dict[str, Any]) -> set[str]:
    entries = [entry(str(at), run={"scheme": {**RECORD, **one}}) for at, one in enumerate(records)]
    return {run.repeat_key for run in analyze_study(entries).runs}


@pytest.mark.parametrize(
    "other", [{"num_classes": 8}, {"label_noise": 0.1}, {"data": "local", "data_id": "ab"}]
)
def test_runs_that_learn_something_else_are_not_ranked(other: dict[str, Any]) -> None:
    def of(scheme: str, **changes: Any) -> RunEntry:
        record = {**RECORD, "full_name": scheme, "num_classes": 16, "data": "synthetic", **changes}
        return entry(scheme, scheme=scheme, run={"scheme": record})

    (schemes,) = analyze_study([of("a"), of("b", **other)]).schemes
    assert schemes.refused and schemes.verdict is None
    (schemes,) = analyze_study([of("a"), of("b")]).schemes
    assert not schemes.refused


@pytest.mark.parametrize("other", [None, reached(50, target="loss=0.5"), noisy(3)])
def test_runs_without_a_common_measure_are_compared_by_samples(other: LearningResult | None) -> None:
    study = analyzed(FAST, runs("b", other, other, other, speed=90.0))
    assert study.schemes[0].learning is None and "b wins" in study.headline


def test_steps_that_a_target_ended_are_no_doubt() -> None:
    ended = analyzed(
        runs("a", reached(100), reached(100), num_steps=16), runs("b", reached(90), reached(90), num_steps=99)
    )
    assert ProblemKind.STEP_COUNTS not in {problem.id for problem in ended.problems}


def test_the_report_has_the_ranking_and_its_curves() -> None:
    text = render_text(build_study_report(analyzed(FAST, SLOW)), width=100)
    for words in ("Ranking by learning", "Training time to accuracy=0.9, median over runs", "against bytes"):
        assert words in text


def test_what_ranks_is_one_of_three(tmp_path: Path) -> None:
    from perfscope.cli.main import cli

    result = CliRunner().invoke(cli, ["compare", str(tmp_path), "--rank-by", "speed"])
    assert result.exit_code == 2 and "'time', 'energy', 'cost'" in result.output
