"""A check as machines read it: every format goes through a real parser, or through its published rules."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from junitparser import JUnitXml
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from perfscope import __version__
from perfscope.gate import records
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
from perfscope.reports.exposition import escaped
from perfscope.reports.gate.annotations import command
from perfscope.reports.gate.registry import FORMATS
from tests.support.synthetic_check import HOSTILE, SAMPLES, failed, hostile, passed, regression, runs, verdict

ALL: dict[str, Callable[[], CheckResult]] = {
    **SAMPLES,
    **{f"hostile {at}": partial(hostile, name) for at, name in enumerate(HOSTILE)},
}

# (attributes that must be there, attributes that may be) by element: the rules of the Ant schema that Windy
# Road published, https://github.com/windyroad/JUnit-Schema; those of Jenkins allow all of it.
ANT: dict[str, tuple[set[str], set[str]]] = {
    "testsuites": (set(), set()),
    "testsuite": (
        {"package", "id", "name", "timestamp", "hostname", "tests", "failures", "errors", "time"},
        {"skipped"},
    ),
    "properties": (set(), set()),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, set()),
    "failure": ({"type"}, {"message"}),
    "error": ({"type"}, {"message"}),
    "skipped": (set(), {"message", "type"}),
    "system-out": (set(), set()),
    "system-err": (set(), set()),
}
CHILDREN = {
    "testsuites": r"(testsuite )*",
    "testsuite": r"properties (testcase )*system-out system-err ",
    "properties": r"(property )*",
    "testcase": r"(skipped |error |failure )?",
}
DECIMAL = re.compile(r"\d+(\.\d+)?")


def check_against_ant(element: ET.Element) -> None:
    must, may = ANT[element.tag]
    assert must <= set(element.attrib) <= must | may, element.attrib
    order = "".join(f"{child.tag} " for child in element)
    assert re.fullmatch(CHILDREN.get(element.tag, ""), order), order
    for name, value in element.attrib.items():
        if name in ("name", "classname", "hostname", "package"):
            assert value and value == " ".join(value.split())  # xs:token
        elif name == "time":
            assert DECIMAL.fullmatch(value)
        elif name in ("id", "tests", "failures", "errors", "skipped"):
            assert value.isdecimal()
        elif name == "timestamp":
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value)
    for child in element:
        check_against_ant(child)


@pytest.mark.parametrize("name", ALL)
def test_junit_follows_the_ant_schema(name: str) -> None:
    text = FORMATS["junit"](ALL[name]())
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n')
    check_against_ant(ET.fromstring(text.encode()))


@pytest.mark.parametrize("name", ALL)
def test_junit_is_green_exactly_when_the_exit_code_is_0(name: str) -> None:
    result = ALL[name]()
    (suite,) = JUnitXml.fromstring(FORMATS["junit"](result).encode())
    cases = list(suite)
    assert suite.tests == len(cases) > 0
    assert suite.failures == sum(case.is_failure for case in cases)
    assert suite.errors == sum(case.is_error for case in cases)
    assert (suite.failures + suite.errors == 0) == (result.outcome is Outcome.PASS)
    assert (suite.failures > 0) == (result.outcome is Outcome.REGRESSION)


def test_junit_explains_a_regression_at_the_metric_that_makes_it() -> None:
    (suite,) = JUnitXml.fromstring(FORMATS["junit"](regression()).encode())
    cases = {case.name: case for case in suite}
    (kept,) = cases["step_p10"].result
    assert (kept.type, kept.message) == (
        "regression",
        "Step time, p10: worse, +10.3 % (26.5 ms → 29.2 ms, 95 % interval +9.2 … +11.1 %)",
    )
    assert "all of it in block2" in kept.text and "git diff" in kept.text
    assert cases["throughput"].is_passed  # worse, but it only warns
    assert "worse: warns" in ET.tostring(suite._elem.find("system-out"), "unicode")
    assert suite.time == cases["step_p10"].time == 372.4
    assert suite.timestamp == "2026-11-21T21:27:13" and suite.hostname == "ci-7"
    told = {one.name: one.value for one in suite.properties()}  # type: ignore[no-untyped-call]
    assert told["outcome"] == "regression" and told["exit_code"] == "1"
    assert told["fingerprint"] == regression().fingerprint.key  # type: ignore[union-attr]
    assert told["commit"] == "9ab03d7" * 5


def test_junit_of_a_check_without_figures_has_a_case_that_errs() -> None:
    (suite,) = JUnitXml.fromstring(FORMATS["junit"](failed()).encode())
    (case,) = suite
    assert case.name == "check" and case.is_error
    assert "exit code 3" in case.result[0].message


def test_junit_errs_where_a_worse_metric_may_not_be_judged() -> None:
    made = replace(regression(), outcome=Outcome.INCONCLUSIVE, headline="Not comparable: torch differs.")
    (suite,) = JUnitXml.fromstring(FORMATS["junit"](made).encode())
    (kept,) = next(case for case in suite if case.name == "step_p10").result
    assert type(kept).__name__ == "Error" and kept.type == "inconclusive"
    assert suite.failures == 0


def test_junit_skips_a_metric_that_only_warns_and_is_unknown() -> None:
    made = replace(passed(), metrics=(verdict("step_p10"), verdict("energy", "unknown", (1.0, None))))
    (suite,) = JUnitXml.fromstring(FORMATS["junit"](made).encode())
    assert [(case.name, case.is_skipped) for case in suite] == [("step_p10", False), ("energy", True)]


@pytest.mark.parametrize("start", [-(10**30), 10**30])
def test_junit_survives_a_start_that_no_calendar_has(start: int) -> None:
    one = runs("head", (26.2,))[0]
    odd = replace(one, surroundings=replace(one.surroundings, start_unix_ns=start))
    text = FORMATS["junit"](replace(passed(), head=Side(label="head", runs=(odd,))))
    check_against_ant(ET.fromstring(text.encode()))


# The runner's own reading of a line (actions/runner, ActionCommand.cs, TryParseV2), written anew.
COMMAND = re.compile(r"::(?P<command>[^\s:]+)(?: (?P<properties>.*?))?::(?P<data>.*)")


def unescape(text: str, pairs: str = "%0D\r %0A\n %25%") -> str:
    for pair in pairs.split(" "):
        text = text.replace(pair[:3], pair[3:])
    return text


def read_command(line: str) -> tuple[str, dict[str, str], str]:
    found = COMMAND.fullmatch(line)
    assert found is not None, line
    properties = dict(one.split("=", 1) for one in (found["properties"] or "").split(",") if one)
    plain = {name: unescape(value, "%0D\r %0A\n %3A: %2C, %25%") for name, value in properties.items()}
    return found["command"], plain, unescape(found["data"])


@pytest.mark.parametrize("name", ALL)
def test_annotations_are_whole_commands_and_nothing_else(name: str) -> None:
    result = ALL[name]()
    text = FORMATS["annotations"](result)
    assert text.endswith("\n")
    read = [read_command(line) for line in text[:-1].split("\n")]
    assert {level for level, _, _ in read} <= {"error", "warning", "notice"}
    assert all(set(properties) == {"title"} for _, properties, _ in read)
    assert (read[0][0] == "error") == (result.outcome.value in (1, 4, 5))


def test_annotations_say_the_verdict_its_cause_and_what_to_do() -> None:
    level, properties, data = read_command(FORMATS["annotations"](regression()).rstrip("\n"))
    assert level == "error" and properties == {"title": "Regression: small-cnn"}
    assert data.split("\n")[0].startswith("Regression: a step takes 10.3 % longer")
    assert "all of it in block2" in data and "git diff main" in data


def test_annotations_warn_of_what_only_warns() -> None:
    lines = FORMATS["annotations"](SAMPLES["warnings-only"]()).splitlines()
    assert [read_command(line)[0] for line in lines] == ["notice", "warning", "warning", "warning"]
    assert "Peak memory is worse by 18.6 %" in read_command(lines[2])[2]


def test_annotations_escape_as_the_toolkit_does() -> None:
    assert command("error", "a:b,c%\r\n", "100 %: x,\r\ny") == (
        "::error title=a%3Ab%2Cc%25%0D%0A::100 %25: x,%0D%0Ay"
    )
    assert read_command(command("error", "a:b,c%\r\n%3A", "::error::%0A")) == (
        "error",
        {"title": "a:b,c%\r\n%3A"},
        "::error::%0A",
    )


def check_against_bmf(document: object) -> None:
    """The rules of https://bencher.dev/bmf.json, and the lengths that its documentation adds."""
    assert isinstance(document, dict)
    for benchmark, measures in document.items():
        assert 0 < len(benchmark) <= 1024 and isinstance(measures, dict)
        for measure, metric in measures.items():
            assert 0 < len(measure) <= 64
            assert {"value"} <= set(metric) <= {"value", "lower_value", "upper_value"}
            assert all(type(value) in (int, float) and math.isfinite(value) for value in metric.values())
            assert metric.get("lower_value", metric["value"]) <= metric["value"]
            assert metric.get("upper_value", metric["value"]) >= metric["value"]


@pytest.mark.parametrize("name", ALL)
def test_bmf_follows_its_schema(name: str) -> None:
    check_against_bmf(json.loads(FORMATS["bmf"](ALL[name]())))


def test_bmf_gives_the_heads_figures_in_its_units() -> None:
    measures = json.loads(FORMATS["bmf"](regression()))["small-cnn"]
    assert measures["latency"]["value"] == pytest.approx(29.205e6)  # ns, the head's median
    low, high = (measures["latency"][f"{end}_value"] for end in ("lower", "upper"))
    assert 28.16e6 <= low < 29.2e6 < high <= 30.11e6
    assert measures["throughput"]["value"] == pytest.approx(962.2, abs=0.1)
    assert measures["peak-memory"]["value"] == 432_013_312
    assert "energy" not in measures


def test_bmf_has_no_interval_of_four_runs_and_nothing_of_none() -> None:
    measures = json.loads(FORMATS["bmf"](SAMPLES["four-runs"]()))["small-cnn"]
    assert set(measures["latency"]) == {"value"}
    assert json.loads(FORMATS["bmf"](failed())) == {}


@pytest.mark.parametrize("name", ALL)
def test_benchmark_action_has_the_shape_that_the_action_reads(name: str) -> None:
    entries = json.loads(FORMATS["benchmark-action"](ALL[name]()))
    assert isinstance(entries, list)
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    for entry in entries:
        assert {"name", "unit", "value"} <= set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert all(isinstance(entry[key], str) for key in entry if key != "value")
        assert type(entry["value"]) in (int, float) and math.isfinite(entry["value"])
        if "range" in entry:  # its extractRangeInfo takes "± " and a number
            assert re.fullmatch(r"± \d+\.\d+", entry["range"])


def test_benchmark_action_grows_when_training_gets_slower() -> None:
    before = {one["name"]: one for one in json.loads(FORMATS["benchmark-action"](passed()))}
    after = {one["name"]: one for one in json.loads(FORMATS["benchmark-action"](regression()))}
    assert set(before) == set(after)
    step, sample = "small-cnn: Step time, p10", "small-cnn: Time per sample (inverse of throughput)"
    for name in (step, sample):
        assert after[name]["value"] / before[name]["value"] == pytest.approx(1.10, abs=0.01)
    assert (after[step]["unit"], after[sample]["unit"]) == ("ms", "µs")
    assert after[step]["value"] == pytest.approx(29.205)
    assert not any("Input wait" in name for name in after)  # its ratio would cry wolf
    assert "Input wait: 398 µs" in after[step]["extra"]


def read_openmetrics(text: str) -> dict[str, Metric]:
    """Families by name, as the client library of Prometheus reads them."""
    return {one.name: one for one in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ALL)
def test_openmetrics_parses(name: str) -> None:
    result = ALL[name]()
    text = FORMATS["openmetrics"](result)
    assert text.endswith("# EOF\n")
    families = read_openmetrics(text)
    outcomes = {
        one.labels["perfscope_check_outcome"]: one.value
        for one in families["perfscope_check_outcome"].samples
    }
    assert outcomes == {one.word: float(one is result.outcome) for one in Outcome}
    for one in families.values():
        assert one.documentation and one.name.endswith(one.unit)
        assert all(math.isfinite(sample.value) for sample in one.samples)


def test_openmetrics_gives_base_units() -> None:
    families = read_openmetrics(FORMATS["openmetrics"](regression()))
    step = families["perfscope_check_step_p10_seconds"]
    assert (step.type, step.unit) == ("gauge", "seconds")
    assert {one.labels["side"]: one.value for one in step.samples} == pytest.approx(
        {"base": 0.026515, "head": 0.029205}
    )
    memory = families["perfscope_check_peak_memory_bytes"]
    assert [one.value for one in memory.samples] == [431_800_320, 432_013_312]
    assert "perfscope_check_energy_joules" not in families  # not measured: no sample
    states = families["perfscope_check_state"].samples
    on = {one.labels["metric"]: one.labels["perfscope_check_state"] for one in states if one.value}
    assert on["step_p10"] == "worse" and on["energy"] == "unknown"
    (worse,) = (
        one for one in families["perfscope_check_worse_ratio"].samples if one.labels["metric"] == "step_p10"
    )
    assert worse.value == pytest.approx(0.1027)
    (told,) = families["perfscope_check_run"].samples
    assert told.labels["version"] == __version__ and told.labels["base"] == "main"


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", 'a\\"\\n"', "}", "é宽"])
def test_openmetrics_labels_come_back_as_they_were(text: str) -> None:
    line = f'# TYPE x gauge\nx{{name="{escaped(text)}"}} 1\n# EOF\n'
    (family,) = read_openmetrics(line).values()
    assert family.samples[0].labels["name"] == text


@pytest.mark.parametrize("name", ALL)
def test_json_is_taken_by_a_strict_reader(name: str) -> None:
    result = ALL[name]()
    text = FORMATS["json"](result)
    document = msgspec.json.decode(text)
    assert document["schema_version"] == 1 and document["kind"] == "check"
    assert document["perfscope_version"] == __version__
    assert document["outcome"] == result.outcome.word and document["exit_code"] == result.outcome.value
    json.loads(text, parse_constant=pytest.fail)


def test_json_holds_every_field_there_is() -> None:
    document = json.loads(FORMATS["json"](regression()))

    def names(kind: type, *without: str) -> set[str]:
        return {one.name for one in dataclasses.fields(kind)} - set(without)

    assert names(CheckResult) <= set(document)
    assert names(MetricVerdict, "metric") <= set(document["metrics"][0])
    assert {"id", "title", "unit", "better", "threshold", "severity", "scale", "hint", "fails"} <= set(
        document["metrics"][0]
    )
    assert names(Side) <= set(document["base"])
    assert names(Noise) <= set(document["noise"])
    assert names(ExcludedRun) <= set(document["left_out"][0])
    assert names(Explanation) <= set(document["explanation"])
    assert names(Moved) | {"is_certain"} <= set(document["explanation"]["layers"][0])
    assert names(Difference) <= set(document["explanation"]["surroundings"][0])
    assert names(records.Fingerprint) | {"key"} <= set(document["fingerprint"])
    own = document["head"]["runs"][0]
    assert names(records.RunFigures) <= set(own)
    assert set(records.Composition.__struct_fields__) <= set(own["composition"])
    assert names(records.LayerTime) <= set(own["layers"][0])
    assert names(records.Surroundings) <= set(own["surroundings"])


def test_json_is_in_base_units_and_null_where_nothing_is_known() -> None:
    document = json.loads(FORMATS["json"](regression()))
    metrics = {one["id"]: one for one in document["metrics"]}
    assert metrics["step_p10"]["head"] == pytest.approx(29.205e6)
    assert metrics["step_p10"]["fails"] is True and metrics["throughput"]["fails"] is False
    assert metrics["energy"]["head"] is None and metrics["energy"]["worse"] is None
    assert document["pairs"][0] == pytest.approx(28.92 / 26.24 - 1)
    odd = replace(passed(), elapsed_s=math.nan, pairs=(math.inf, 0.1), noise=Noise(spread=math.nan))
    document = json.loads(FORMATS["json"](odd), parse_constant=pytest.fail)
    assert document["elapsed_s"] is None and document["pairs"] == [None, 0.1]
    assert document["noise"] == {"spread": None, "visible": None}
