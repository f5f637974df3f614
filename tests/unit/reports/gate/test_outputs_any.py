"""Whatever a check holds, every output of it is drawn, can be parsed, and is no command to a CI runner."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfscope.gate.metrics import METRICS
from perfscope.gate.records import Fingerprint, RunFigures, Surroundings
from perfscope.gate.results import (
    CheckResult,
    Difference,
    ExcludedRun,
    Explanation,
    MetricVerdict,
    Moved,
    Noise,
    Outcome,
    Side,
)
from perfscope.reports.gate.markdown import MOST_BYTES
from perfscope.reports.gate.registry import FORMATS
from perfscope.reports.gate.text import render_check
from perfscope.reports.terminal import cells
from tests.support.synthetic_check import HOSTILE, hostile
from tests.unit.reports.gate.test_outputs_formats import (
    check_against_ant,
    check_against_bmf,
    read_command,
    read_openmetrics,
)

words = st.one_of(
    st.text(st.characters(), max_size=12),  # with half surrogates
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from(["::", "##[", "error", "\n", "|", "`", "\\", "]]>", "@a", "<b>", " "])).map(
        "".join
    ),
)
figures = st.none() | st.floats() | st.floats(0, 1e10)
sentences = st.lists(words, max_size=2).map(tuple)
severities = st.sampled_from(["error", "warn", "off"])
verdicts = st.builds(
    MetricVerdict,
    metric=st.builds(
        lambda one, severity, threshold: replace(one, severity=severity, threshold=threshold),
        st.sampled_from(list(METRICS.values())),
        severities,
        st.floats(),
    ),
    state=st.sampled_from(["ok", "worse", "unproven", "better", "unknown"]),
    base=figures,
    head=figures,
    worse=figures,
    low=figures,
    high=figures,
    p=figures,
    reason=words,
)
moved = st.lists(
    st.builds(
        Moved,
        kind=st.sampled_from(["part", "layer", "collective"]),
        what=words,
        title=words,
        base_ns=st.floats(),
        head_ns=st.floats(),
        change_ns=st.floats(),
        low_ns=st.floats(),
        high_ns=st.floats(),
        note=words,
    ),
    max_size=3,
).map(tuple)
fingerprints = st.builds(
    Fingerprint,
    cpu=words,
    gpus=sentences,
    num_cpus=st.none() | st.integers(),
    num_hosts=st.none() | st.integers(),
)
runs = st.builds(
    RunFigures,
    name=words,
    fingerprint=fingerprints,
    metrics=st.dictionaries(st.sampled_from(list(METRICS)), st.floats(), max_size=4),
    num_steps=st.integers(0, 10**9),
    surroundings=st.builds(
        Surroundings,
        start_unix_ns=st.none() | st.integers(),
        commit=words,
        hosts=sentences,
        dirty=st.none() | st.booleans(),
    ),
    pair=st.none() | st.integers(),
    clean=st.none() | st.booleans(),
)
sides = st.builds(Side, label=words, runs=st.lists(runs, max_size=2).map(tuple))
results = st.builds(
    CheckResult,
    name=words,
    outcome=st.sampled_from(Outcome),
    headline=words,
    reasons=sentences,
    metrics=st.lists(verdicts, max_size=4).map(tuple),
    base=sides,
    head=sides,
    pairs=st.lists(st.floats(), max_size=3).map(tuple),
    planned=st.integers(0, 100),
    stopped=words,
    alpha=st.floats(0, 1),
    noise=st.none() | st.builds(Noise, spread=st.floats(), visible=figures),
    left_out=st.lists(st.builds(ExcludedRun, name=words, side=words, reason=words), max_size=2).map(tuple),
    explanation=st.none()
    | st.builds(
        Explanation,
        cause=st.just("compute"),
        headline=words,
        action=words,
        parts=moved,
        layers=moved,
        collectives=moved,
        surroundings=st.lists(
            st.builds(Difference, what=words, base=words, head=words, weighty=st.booleans(), text=words),
            max_size=2,
        ).map(tuple),
        notes=sentences,
    ),
    fingerprint=st.none() | fingerprints,
    warnings=sentences,
    settings=st.dictionaries(
        words, st.none() | st.floats() | words | st.lists(words, max_size=1), max_size=1
    ),
    elapsed_s=figures,
)


def check_all(result: CheckResult) -> None:
    drawn = {name: render(result) for name, render in FORMATS.items()}
    for width in (60, 137):
        drawn[f"text at {width}"] = text = render_check(result, width=width, color=False)
        assert all(cells(line) <= width for line in text.splitlines()), width
    render_check(result, width=80, color=True)
    for name, text in drawn.items():
        text.encode("utf-8")  # no half surrogate reaches a file or a terminal
        assert text.endswith("\n"), name
        assert "##[" not in text, name
        assert (
            not any(line.lstrip().startswith("::") for line in text.split("\n")) or name == "annotations"
        ), name
        assert not {c for c in text if c < " " and c != "\n"}, name
    json.loads(drawn["json"], parse_constant=pytest.fail)
    check_against_bmf(json.loads(drawn["bmf"]))
    json.loads(drawn["benchmark-action"], parse_constant=pytest.fail)
    assert read_openmetrics(drawn["openmetrics"])
    for line in drawn["annotations"][:-1].split("\n"):
        read_command(line)
    root = ET.fromstring(drawn["junit"].encode())
    check_against_ant(root)
    failing = root.findall(".//failure") + root.findall(".//error")
    assert bool(failing) == (result.outcome is not Outcome.PASS)
    assert len(drawn["markdown"].encode()) <= MOST_BYTES + 60
    html = str(MarkdownIt("commonmark").enable("table").render(drawn["markdown"]))
    assert "<script" not in html and "<b>" not in html and "href" not in html


@settings(max_examples=120, deadline=None)
@given(results)
def test_any_check_is_drawn_in_every_format(result: CheckResult) -> None:
    check_all(result)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_harm_no_format(name: str) -> None:
    check_all(hostile(name))


@pytest.mark.parametrize("outcome", Outcome)
def test_an_empty_check_is_drawn_in_every_format(outcome: Outcome) -> None:
    check_all(CheckResult(name="", outcome=outcome, headline=""))
