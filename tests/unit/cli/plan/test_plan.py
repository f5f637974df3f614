"""`perfscope plan` as users call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.analysis.plan.ranking import planned
from perfscope.analysis.plan.records import Basis, Candidate, Memory, Trial
from perfscope.cli.main import cli
from perfscope.cli.plan.text import verified_text
from perfscope.errors import PerfscopeError

_MACHINE = ("--flops", "1T", "--batch", "8")


def _plan(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _document(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["plan", *arguments, "--json"], catch_exceptions=False)
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def _error(*arguments: str) -> str:
    with pytest.raises(PerfscopeError) as raised:
        CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False, standalone_mode=False)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_plan_fits_a_terminal_and_says_what_it_assumes() -> None:
    text = _plan("--model", "gpt-nano", "--cluster", "2x2@1gbit", *_MACHINE)
    assert max(map(len, text.splitlines())) <= 80
    assert "Assumed" in text
    assert "perfscope bench run" in text
    assert "--model gpt-nano" in text
    assert "Not measured. Steps are lower bounds" in text
    assert "step ≥" in text
    assert "Pareto front" in text


def test_a_limit_of_memory_excludes_and_says_what_would_need_how_much() -> None:
    free = _document("--model", "gpt-nano", "--cluster", "1x2", *_MACHINE)
    peaks = sorted(plan["candidate"]["memory"]["peak"] for plan in free["pareto"])
    limit = f"{peaks[0] * 1.01:.0f}"
    tight = _document("--model", "gpt-nano", "--cluster", "1x2", *_MACHINE, "--device-memory", limit)
    assert 0 < tight["num_fit"] < free["num_fit"]
    assert all(plan["candidate"]["memory"]["peak"] <= float(limit) for plan in tight["best"])
    assert {one["why"] for one in tight["excluded"]} >= {"memory"}
    line = _error("--model", "gpt-nano", "--cluster", "1x2", *_MACHINE, "--device-memory", "100kB")
    assert "no way to train fits" in line
    assert "holds" in line


def test_a_slow_link_moves_what_is_sent_a_lot_off_the_top() -> None:
    fast = _document("--model", "alexnet", "--cluster", "2x1", "--network", "1us,800Gbit", *_MACHINE)
    slow = _document("--model", "alexnet", "--cluster", "2x1", "--network", "1us,10Mbit", *_MACHINE)
    assert slow["best"][0]["communication_ratio"] > fast["best"][0]["communication_ratio"]
    assert slow["best"][0]["step_s"] > fast["best"][0]["step_s"]


def test_a_price_brings_in_fewer_ranks() -> None:
    document = _document(*("--model", "smallcnn", "--cluster", "1x4", "--price-per-hour", "2", *_MACHINE))
    assert {plan["candidate"]["num_ranks"] for plan in document["pareto"]} >= {1}
    assert all(plan["cost"] > 0 for plan in document["best"])


def test_memory_of_several_axes_is_marked_as_not_verified() -> None:
    document = _document("--model", "gpt-nano", "--cluster", "1x4", *_MACHINE, "--top", "50")
    assert document["order"] == "time_per_sample"
    memory = {plan["candidate"]["mesh"]: plan["candidate"]["memory"] for plan in document["best"]}
    assert not memory["dp=2,pp=2"]["is_verified"]
    assert memory["pp=4"]["is_verified"]


def test_only_measured_ways_count_in_the_order_that_was_verified() -> None:
    trials = [_trial(each) for each in (0.2, 0.4, None)]
    text = verified_text(trials)
    assert "among 2" in text
    assert "4.00x" in text


def _trial(measured: float | None) -> Trial:
    held = Memory(
        weights=1.0, gradients=0.0, state=0.0, activations=0.0, buffers=0.0, peak=1.0, is_verified=True
    )
    candidate = Candidate(
        scheme="dp.ddp",
        mesh="dp=2",
        num_ranks=2,
        batch=8,
        microbatches=1,
        dtype="float32",
        checkpointing=False,
        stages=1,
        forward_s=0.04,
        backward_s=0.06,
        update_s=0.0,
        transfer_s=0.0,
        overlaps=True,
        flops=1.0,
        memory=held,
    )
    plan = planned(candidate, Basis.CALIBRATED, 1e12, 0.5)
    return Trial(
        plan=plan, measured_step_s=measured, measured_to_computed=measured and measured / plan.step_s
    )


def test_without_rates_the_model_is_trained_here_and_steps_are_predictions() -> None:
    arguments = ("--model", "gpt-nano", "--cluster", "1x1", "--batch", "4")
    document = _document(*arguments)
    assert document["basis"] == "calibrated"
    assert document["best"][0]["candidate"]["alone_s"] is not None
    assert "a serial training of the model on this machine" in document["assumed"][0]
    bounds = _document(*arguments, "--no-calibrate")
    assert bounds["basis"] == "rates"
    assert document["best"][0]["step_s"] > bounds["best"][0]["step_s"]


def test_a_page_has_every_way_with_filters_and_the_pareto_front(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    arguments = ("--model", "gpt-nano", "--cluster", "1x2", *_MACHINE, "--device-memory", "2MB")
    document = _document(*arguments, "-o", str(page))
    text = page.read_text(encoding="utf-8")
    assert text.count("<tr data-facets=") == document["num_fit"]
    assert {"Mesh", "Schedule", "Pareto front"} <= set(re.findall(r'aria-label="([^"]+)" data-facet', text))
    assert 'id="plan-pareto-memory"' in text
    assert "above the limit of memory" in text
    assert "lower bounds" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "gtp-nano", "--cluster", "1x2"), "did you mean gpt-nano"),
        (("--model", "gpt-nano", "--cluster", "two"), "HOSTSxRANKS@RATE"),
        (("--model", "gpt-nano", "--cluster", "2x2"), "--network"),
        (("--model", "gpt-nano", "--cluster", "100x8@1gbit"), "more than the 64"),
        (("--model", "gpt-nano", "--cluster", "1x2", "--flops", "fast"), "60T"),
        (("--model", "gpt-nano", "--cluster", "1x2", "--batch", "0"), "above 0"),
        (
            (
                *("--model", "gpt-nano", "--cluster", "1x2", "--dtype", "float32,bfloat16"),
                *("--flops", "float32=1T"),
            ),
            "has no rate of bfloat16",
        ),
        (("--model", "gpt-nano", "--cluster", "1x2", "--dtype", "int8"), "none of float32"),
        (("--model", "gpt-nano", "--cluster", "1x2", "--device-memory", "much"), "80GB"),
        (("--model", "smallcnn", "--cluster", "1x3", "--batch", "8", "--flops", "1T"), "cannot be cut"),
        (("--model", "gpt-nano", "--cluster", "1x2", "-o", "plan.txt"), "ends in .html or .pdf"),
        (("--model", "gpt-nano", "--cluster", "1x2", "-o", "no/plan.html"), "no directory no"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(arguments: tuple[str, ...], words: str) -> None:
    assert words in _error(*arguments)


def test_memory_is_given_with_activations_kept_and_recomputed_also_where_only_the_latter_fits() -> None:
    machine = ("--model", "gpt-nano", "--cluster", "1x1", *_MACHINE)
    free = _plan(*machine).partition("Activations kept, and recomputed")[2].splitlines()
    kept, recomputed = (float(found) for found in re.findall(r"([\d.]+) [KM]iB", free[2]))
    assert recomputed < kept
    tight = _plan(*machine, "--device-memory", f"{(kept + recomputed) / 2:.2f}MiB")
    assert "does not fit" in tight.partition("Activations kept, and recomputed")[2].splitlines()[2]
