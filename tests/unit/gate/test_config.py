"""The settings of a check: where they are read from, what they may be, and one line about what not."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.errors import UsageError
from perfscope.gate.config import CheckTable, load_settings, with_overrides
from perfscope.gate.metrics import METRICS, GateMetric, Severity
from perfscope.gate.records import Fingerprint
from perfscope.gate.settings import Settings

KEYS = tuple(one.name for one in fields(CheckTable))
FINGERPRINT = tuple(one.name for one in fields(Fingerprint))


def project(folder: Path, text: str, name: str = "perfscope.toml") -> Path:
    """A repository with a configuration file at its root."""
    (folder / ".git").mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def refusal(folder: Path, text: str, name: str = "perfscope.toml") -> str:
    """What the error says after the file's path; that it is one line and names the file is checked here."""
    file = project(folder, text, name)
    with pytest.raises(UsageError) as caught:
        load_settings(folder)
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert said.isprintable()
    return said.removeprefix(f"{file}: ")


# -- where ----


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert load_settings(tmp_path) == Settings()


def test_every_setting_has_a_key_and_every_key_a_setting() -> None:
    assert set(KEYS) == {one.name for one in fields(Settings)} - {"source"} | {"threshold"}


def test_the_nearest_file_upwards_counts_alone(tmp_path: Path) -> None:
    project(tmp_path, "[check]\npairs = 20\nrepeats = 9\n")
    inner = tmp_path / "training" / "vision"
    inner.mkdir(parents=True)
    assert load_settings(inner).pairs == 20
    (tmp_path / "training" / "perfscope.toml").write_text("[check]\npairs = 12\n")
    near = load_settings(inner)
    assert (near.pairs, near.repeats) == (12, Settings().repeats)
    assert near.source == tmp_path / "training" / "perfscope.toml"


def test_a_file_that_says_nothing_of_checks_hides_none_above_it(tmp_path: Path) -> None:
    project(tmp_path, "[tool.perfscope.check]\npairs = 20\n", "pyproject.toml")
    inner = tmp_path / "packages"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "trainer"\n[tool.ruff]\nline-length = 100\n')
    assert load_settings(inner).pairs == 20


def test_nothing_above_the_repository_is_read(tmp_path: Path) -> None:
    (tmp_path / "perfscope.toml").write_text("[check]\npairs = 20\n")
    root = tmp_path / "repository"
    root.mkdir()
    (root / ".git").write_text("gitdir: elsewhere\n")  # as in a worktree
    assert load_settings(root) == Settings()


def test_perfscope_toml_goes_before_the_pyproject_toml_beside_it(tmp_path: Path) -> None:
    project(tmp_path, "[tool.perfscope.check]\npairs = 20\n", "pyproject.toml")
    project(tmp_path, "[check]\npairs = 12\n")
    assert load_settings(tmp_path).pairs == 12


def test_perfscope_toml_may_use_the_long_name(tmp_path: Path) -> None:
    project(tmp_path, "[tool.perfscope.check]\npairs = 12\n")
    assert load_settings(tmp_path).pairs == 12


def test_a_check_table_in_pyproject_toml_is_somebody_elses(tmp_path: Path) -> None:
    project(tmp_path, "[check]\npairs = 'many'\n", "pyproject.toml")
    assert load_settings(tmp_path) == Settings()


def test_a_named_file_is_read_instead_of_the_nearest(tmp_path: Path) -> None:
    project(tmp_path, "[check]\npairs = 20\n")
    other = tmp_path / "nightly.toml"
    other.write_text("[check]\npairs = 30\n")
    assert load_settings(tmp_path, other).pairs == 30


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    project(tmp_path, '[check]\nbaseline = "perf/baseline.json"\nhistory = "/var/perf.sqlite"\n')
    inner = tmp_path / "training"
    inner.mkdir()
    read = load_settings(inner)
    assert read.baseline == tmp_path / "perf" / "baseline.json"
    assert read.history == Path("/var/perf.sqlite")


# -- what ----


def test_metrics_get_their_own_direction_threshold_and_severity(tmp_path: Path) -> None:
    text = """
        [check.metrics.peak_memory]
        severity = "error"
        threshold = "15 %"
        [check.metrics]
        throughput = { direction = "lower", threshold = 0.2 }
        energy = { severity = "off" }
    """
    project(tmp_path, text)
    read = load_settings(tmp_path).metrics
    assert (read["peak_memory"].severity, read["peak_memory"].threshold) == ("error", 0.15)
    assert (read["throughput"].better, read["throughput"].threshold) == ("lower", 0.2)
    assert read["throughput"].severity == METRICS["throughput"].severity
    assert read["energy"].severity == "off"
    assert read["step_p10"] == METRICS["step_p10"]
    assert list(read) == list(METRICS)


@pytest.mark.parametrize(
    ("said", "share"), [('"8%"', 0.08), ('"8 %"', 0.08), ("0.08", 0.08), ('"0.08"', 0.08), ('"250%"', 2.5)]
)
def test_the_threshold_is_that_of_the_metric_that_decides(tmp_path: Path, said: str, share: float) -> None:
    project(tmp_path, f"[check]\nthreshold = {said}\n")
    read = load_settings(tmp_path).metrics
    assert read["step_p10"].threshold == pytest.approx(share)
    assert {id_: one for id_, one in read.items() if id_ != "step_p10"} == {
        id_: one for id_, one in METRICS.items() if id_ != "step_p10"
    }


# -- what not ----

WHOLE = "must be a whole number from 1 to 200, not"
SHARE = 'must be a share such as "5%" or 0.05, above 0 and at most 1000 %, not'
KNOWN = f"it knows {', '.join(KEYS)}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pairs = 0", f"check.pairs: {WHOLE} 0"),
        ("pairs = 201", f"check.pairs: {WHOLE} 201"),
        ('pairs = "eight"', f'check.pairs: {WHOLE} "eight"'),
        ("pairs = true", f"check.pairs: {WHOLE} true"),
        ("pairs = 8.0", f"check.pairs: {WHOLE} 8.0"),
        (f"pairs = 0x{'f' * 4000}", f"check.pairs: {WHOLE} a number of thousands of digits"),
        ("pairs = [8]", f"check.pairs: {WHOLE} [8]"),
        ("pairs = {}", f"check.pairs: {WHOLE} {{}}"),
        ("pairs = 2026-11-21", f"check.pairs: {WHOLE} 2026-11-21"),
        ("fewest = 1", "check.fewest: must be a whole number from 2 to 1,000, not 1"),
        ("fewest_steps = 1", "check.fewest_steps: must be a whole number from 2 to 1,000,000, not 1"),
        ("repeats = -1", "check.repeats: must be a whole number from 0 to 1,000, not -1"),
        ("early_stop = 1", "check.early_stop: must be true or false, not 1"),
        ('early_stop = "yes"', 'check.early_stop: must be true or false, not "yes"'),
        ("alpha = 0", "check.alpha: must be a number above 0 and at most 0.5, not 0"),
        ("alpha = 0.6", "check.alpha: must be a number above 0 and at most 0.5, not 0.6"),
        ("alpha = nan", "check.alpha: must be a number above 0 and at most 0.5, not nan"),
        ('alpha = "5%"', 'check.alpha: must be a number above 0 and at most 0.5, not "5%"'),
        ("threshold = 0", f"check.threshold: {SHARE} 0"),
        ("threshold = -0.05", f"check.threshold: {SHARE} -0.05"),
        ("threshold = nan", f"check.threshold: {SHARE} nan"),
        ("threshold = inf", f"check.threshold: {SHARE} inf"),
        ("threshold = true", f"check.threshold: {SHARE} true"),
        ('threshold = "1001%"', f'check.threshold: {SHARE} "1001%"'),
        ('threshold = "five"', f'check.threshold: {SHARE} "five"'),
        ('threshold = "%"', f'check.threshold: {SHARE} "%"'),
        (
            "threshold = 5",
            'check.threshold: must be a share: "5%" for 5 percent, or a number below 1, not 5',
        ),
        (
            'threshold = "5"',
            'check.threshold: must be a share: "5%" for 5 percent, or a number below 1, not "5"',
        ),
        ('name = ""', 'check.name: must be a name of 1 to 200 printable characters, not ""'),
        ('name = "a\\nb"', 'check.name: must be a name of 1 to 200 printable characters, not "a\\nb"'),
        ('baseline = ""', 'check.baseline: must be the path of a file, not ""'),
        ("history = 5", "check.history: must be the path of a file, not 5"),
        (
            'history = "~nobody-of-that-name/h.sqlite"',
            "check.history: must be the path of a file, and no user here has that home directory, not"
            ' "~nobody-of-that-name/h.sqlite"',
        ),
        ('allow = "torch"', 'check.allow: must be a list, not "torch"; write ["torch"]'),
        (
            'allow = ["torch", "cpus"]',
            f'check.allow: must be one of {", ".join(FINGERPRINT)}, not "cpus" (did you mean "cpu"?)',
        ),
        ("allow = [5]", f"check.allow: must be one of {', '.join(FINGERPRINT)}, not 5"),
        ("pears = 8", f'check: has no key "pears" (did you mean "pairs"?); {KNOWN}'),
        ("early-stop = true", f'check: has no key "early-stop" (did you mean "early_stop"?); {KNOWN}'),
        ('source = "x"', f'check: has no key "source"; {KNOWN}'),
        ('"a\\nb" = 1', f'check: has no key "a\\nb"; {KNOWN}'),
        ("metrics = 5", "check.metrics: must be a table, not 5"),
        (
            'metrics.peak_memory = "error"',
            'check.metrics.peak_memory: must be a table such as { severity = "error", threshold = "5%" },'
            ' not "error"',
        ),
        (
            "metrics.peak_mem = {}",
            'check.metrics: has no key "peak_mem" (did you mean "peak_memory"?); it knows '
            + ", ".join(METRICS),
        ),
        (
            'metrics."a\\nb" = {}',
            'check.metrics: has no key "a\\nb"; it knows ' + ", ".join(METRICS),
        ),
        (
            'metrics.energy.severty = "off"',
            'check.metrics.energy: has no key "severty" (did you mean "severity"?);'
            " it knows direction, threshold, severity",
        ),
        (
            'metrics.energy.severity = "eror"',
            'check.metrics.energy.severity: must be one of error, warn, off, not "eror"'
            ' (did you mean "error"?)',
        ),
        (
            "metrics.energy.severity = 1",
            "check.metrics.energy.severity: must be one of error, warn, off, not 1",
        ),
        (
            'metrics.energy.direction = "Lower"',
            'check.metrics.energy.direction: must be one of lower, higher, not "Lower"'
            ' (did you mean "lower"?)',
        ),
        (
            'metrics.energy.threshold = "0%"',
            f'check.metrics.energy.threshold: {SHARE} "0%"',
        ),
        (
            'threshold = "8%"\nmetrics.step_p10.threshold = "9%"',
            "check.threshold and check.metrics.step_p10.threshold are the same; keep one of them",
        ),
        (
            'metrics.step_p10.severity = "warn"',
            'check.metrics: no metric has severity "error", so this check could never fail;'
            " give it to one, such as step_p10",
        ),
        (
            "pairs = 4",
            "check.pairs: must be at least check.fewest, which is 5, or nothing is ever judged; not 4",
        ),
        (
            "fewest = 9",
            "check.pairs: must be at least check.fewest, which is 9, or nothing is ever judged; not 8",
        ),
        (
            "pairs = 5\nalpha = 0.01",
            "check.pairs: 5 pairs cannot prove anything at alpha 0.01 (their smallest p is 0.031);"
            " use 7 pairs or more, or a larger alpha",
        ),
    ],
)
def test_what_cannot_be_is_one_line_with_the_key_and_what_is_right(
    tmp_path: Path, text: str, said: str
) -> None:
    assert refusal(tmp_path, f"[check]\n{text}\n") == said


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, '[check]\npears = 8\nalpha = 2\nmetrics.energy.severity = "eror"\n')
    assert said.split("; ")[0] == 'check: has no key "pears" (did you mean "pairs"?)'
    assert "check.alpha: must be a number above 0 and at most 0.5, not 2; check.metrics.energy.sev" in said


def test_the_number_of_pairs_that_is_proposed_is_the_fewest_that_are_accepted(tmp_path: Path) -> None:
    assert "use 7 pairs" in refusal(tmp_path, "[check]\npairs = 6\nalpha = 0.01\n")
    project(tmp_path, "[check]\npairs = 7\nalpha = 0.01\n")
    assert load_settings(tmp_path).pairs == 7


def test_the_long_name_stands_in_errors_where_it_is_used(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[tool.perfscope.check]\npairs = 0\n", "pyproject.toml")
    assert said == f"tool.perfscope.check.pairs: {WHOLE} 0"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("perfscope.toml", "pairs = 8\n", 'has no key "pairs"; it knows check, tool'),
        ("perfscope.toml", "[chekc]\n", 'has no key "chekc" (did you mean "check"?); it knows check, tool'),
        (
            "pyproject.toml",
            "[tool.perfscope.chekc]\n",
            'tool.perfscope: has no key "chekc" (did you mean "check"?); it knows check',
        ),
        ("pyproject.toml", "[tool]\nperfscope = 5\n", "tool.perfscope: must be a table, not 5"),
        ("perfscope.toml", "check = 5\n", "check: must be a table, not 5"),
        (
            "perfscope.toml",
            "[check]\n[tool.perfscope.check]\n",
            "has both [check] and [tool.perfscope.check]; keep one of them",
        ),
    ],
)
def test_tables_that_are_not_what_they_should_be_are_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    assert refusal(tmp_path, text, name) == said


def test_what_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[check]\npairs = 8\nname = 'CNN\n")
    assert said.startswith("is not TOML: ") and "at line 3, the end of the file" in said
    assert "(at line 2, column 9)" in refusal(tmp_path, "[check]\npairs = eight\n")
    assert refusal(tmp_path, f"[check]\npairs = {'9' * 5000}\n").startswith("is not TOML: ")
    assert "nested too deeply" in refusal(tmp_path, f"[check]\nallow = {'[' * 50000}\n")


def test_bytes_that_are_not_utf_8_are_refused_with_their_line(tmp_path: Path) -> None:
    file = project(tmp_path, "")
    file.write_bytes(b"[check]\n# R\xe9seau\n")
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path)
    assert str(caught.value) == f"{file}: is not TOML: line 2 is not UTF-8"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.toml", "cannot be read: No such file or directory"),
        ("folder.toml", "cannot be read: Is a directory"),
        ("empty.toml", "has no table [check] or [tool.perfscope.check]"),
        ("pyproject.toml", "has no table [tool.perfscope.check]"),
    ],
)
def test_a_named_file_must_be_there_and_say_something(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "empty.toml").touch()
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path, tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {said}"


def test_a_file_with_a_hostile_name_makes_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a\nb\x1b[31m.toml"
    file.write_text("[check]\npairs = 0\n")
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path, file)
    assert str(caught.value).isprintable()
    assert "a\\nb\\x1b[31m.toml" in str(caught.value)


# -- the command line on top ----


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    project(tmp_path, '[check]\npairs = 20\nname = "cnn"\nthreshold = "8%"\nallow = ["torch"]\nrepeats = 1\n')
    made = with_overrides(
        load_settings(tmp_path),
        pairs=10,
        threshold="6%",
        alpha=0.1,
        name="resnet",
        allow=["perfscope", "torch"],
    )
    assert (made.pairs, made.alpha, made.name, made.repeats) == (10, 0.1, "resnet", 1)
    assert made.metrics["step_p10"].threshold == pytest.approx(0.06)
    assert made.allow == ("torch", "perfscope")


def test_without_overrides_nothing_changes(tmp_path: Path) -> None:
    project(tmp_path, "[check]\npairs = 20\n")
    assert with_overrides(load_settings(tmp_path)) == load_settings(tmp_path)


@pytest.mark.parametrize(
    ("word", "severity", "threshold"),
    [
        ("peak_memory=error", "error", METRICS["peak_memory"].threshold),
        ("peak_memory=off", "off", METRICS["peak_memory"].threshold),
        ("peak_memory=8%", METRICS["peak_memory"].severity, 0.08),
        ("peak_memory=0.08", METRICS["peak_memory"].severity, 0.08),
        ("peak_memory=error:15%", "error", 0.15),
    ],
)
def test_words_of_metric_change_severity_threshold_or_both(
    word: str, severity: str, threshold: float
) -> None:
    changed = with_overrides(Settings(), metric_options=[word]).metrics["peak_memory"]
    assert changed.severity == severity
    assert changed.threshold == pytest.approx(threshold)
    assert Settings().metrics["peak_memory"] == METRICS["peak_memory"]


def test_of_two_words_for_one_metric_the_later_counts() -> None:
    made = with_overrides(Settings(), metric_options=["energy=error:5%", "energy=off"])
    assert (made.metrics["energy"].severity, made.metrics["energy"].threshold) == ("off", 0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["peak_memory"],
            "--metric peak_memory: must be ID=SEVERITY, ID=THRESHOLD or ID=SEVERITY:THRESHOLD,"
            " as in step_p10=8%",
        ),
        (
            ["peak-memory=off"],
            "--metric peak-memory=off: there is no such metric (did you mean"
            f' "peak_memory"?); there are {", ".join(METRICS)}',
        ),
        (
            ["energy=eror"],
            '--metric energy=eror: severity: must be one of error, warn, off, not "eror"'
            ' (did you mean "error"?)',
        ),
        (
            ["energy=eror:5%"],
            '--metric energy=eror:5%: severity: must be one of error, warn, off, not "eror"'
            ' (did you mean "error"?)',
        ),
        (["energy=error:"], f'--metric energy=error:: threshold: {SHARE} ""'),
        (
            ["energy=5"],
            '--metric energy=5: threshold: must be a share: "5%" for 5 percent, or a number below 1, not "5"',
        ),
        (
            ["step_p10=off"],
            '--metric: no metric has severity "error", so this check could never fail;'
            " give it to one, such as step_p10",
        ),
    ],
)
def test_words_of_metric_that_cannot_be_are_one_line(words: Sequence[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_overrides(Settings(), metric_options=words)
    assert str(caught.value) == said


def test_a_hostile_word_of_metric_makes_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        with_overrides(Settings(), metric_options=["a\nb\x1b]0;x=off"])
    assert str(caught.value).isprintable()


def test_other_options_are_refused_by_their_own_names() -> None:
    for how, said in (
        ({"pairs": 0}, f"--pairs: {WHOLE} 0"),
        ({"alpha": 0.7}, "--alpha: must be a number above 0 and at most 0.5, not 0.7"),
        (
            {"threshold": "5"},
            '--threshold: must be a share: "5%" for 5 percent, or a number below 1, not "5"',
        ),
        ({"name": "\t"}, '--name: must be a name of 1 to 200 printable characters, not "\\t"'),
        (
            {"allow": ["torhc"]},
            f'--allow: must be one of {", ".join(FINGERPRINT)}, not "torhc" (did you mean "torch"?)',
        ),
        (
            {"threshold": "5%", "metric_options": ["step_p10=6%"]},
            "--threshold and --metric step_p10=6% both set the threshold of step_p10; leave one out",
        ),
        (
            {"alpha": 0.001},
            "--alpha: 8 pairs cannot prove anything at alpha 0.001 (their smallest p is 0.0039);"
            " use 10 pairs or more, or a larger alpha",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            with_overrides(Settings(), **how)
        assert str(caught.value) == said


def test_fewer_pairs_than_are_judged_may_be_asked_for_by_hand() -> None:
    """The check then ends as inconclusive and says why: a trial run of the gate is no mistake."""
    assert with_overrides(Settings(), pairs=1).pairs == 1


# -- any settings ----


def toml_text(value: str) -> str:
    """A basic string of TOML."""
    plain = string.ascii_letters + string.digits + " _-./~%()"
    return '"' + "".join(one if one in plain else f"\\U{ord(one):08x}" for one in value) + '"'


def toml_share(hundredths: int) -> str:
    return f'"{hundredths}%"'


def as_toml(table: str, settings: Settings) -> str:
    whole = ("pairs", "fewest", "fewest_steps", "repeats")
    lines = [f"[{table}]", *(f"{key} = {getattr(settings, key)}" for key in whole)]
    lines.append(f"alpha = {settings.alpha!r}")
    lines.append(f"early_stop = {str(settings.early_stop).lower()}")
    lines.append(f"allow = [{', '.join(map(toml_text, settings.allow))}]")
    for key in ("name", "baseline", "history"):
        value = getattr(settings, key)
        if value is not None:
            lines.append(f"{key} = {toml_text(str(value))}")
    for id_, one in settings.metrics.items():
        percent = toml_share(round(one.threshold * 100))
        lines += [f"[{table}.metrics.{id_}]", f'direction = "{one.better}"', f"threshold = {percent}"]
        lines.append(f'severity = "{one.severity}"')
    return "\n".join(lines) + "\n"


NAMES = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=20).filter(
    lambda text: bool(text.strip()) and text.isprintable()
)
PATHS = NAMES.map(lambda text: Path("/perf") / text.replace("/", "-").strip("."))


def changed(metric: GateMetric) -> st.SearchStrategy[GateMetric]:
    return st.builds(
        lambda better, hundredths, severity: replace(
            metric, better=better, threshold=hundredths / 100, severity=severity
        ),
        st.sampled_from(("lower", "higher")),
        st.integers(1, 1000),
        st.sampled_from(get_args(Severity)),
    )


def metrics() -> st.SearchStrategy[Mapping[str, GateMetric]]:
    return st.fixed_dictionaries({id_: changed(one) for id_, one in METRICS.items()}).filter(
        lambda made: any(one.severity == "error" for one in made.values())
    )


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    fewest = draw(st.integers(2, 30))
    pairs = draw(st.integers(fewest, 200))
    smallest = 0.5**pairs
    return Settings(
        name=draw(st.none() | NAMES),
        pairs=pairs,
        alpha=draw(st.floats(smallest, 0.5, exclude_min=True)),
        fewest=fewest,
        fewest_steps=draw(st.integers(2, 1_000_000)),
        repeats=draw(st.integers(0, 1000)),
        early_stop=draw(st.booleans()),
        allow=tuple(draw(st.lists(st.sampled_from(FINGERPRINT), unique=True))),
        metrics=draw(metrics()),
        baseline=draw(st.none() | PATHS),
        history=draw(st.none() | PATHS),
    )


@pytest.mark.parametrize("table", ["check", "tool.perfscope.check"])
def test_any_settings_written_as_toml_read_back(table: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("any") / "perfscope.toml"

    @given(any_settings())
    def read_back(settings: Settings) -> None:
        file.write_text(as_toml(table, settings), encoding="utf-8")
        assert load_settings(file.parent, file) == replace(settings, source=file)

    read_back()
