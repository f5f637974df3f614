"""docs/ci.md and action.yml: recipes that parse, options that exist, defaults that hold, scripts that run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from perfscope.gate.config import CheckTable, MetricTable, load_settings, with_overrides
from perfscope.gate.metrics import METRICS
from perfscope.gate.records import Fingerprint
from perfscope.gate.results import Outcome
from perfscope.gate.sequential import fewest_pairs, looks
from perfscope.gate.settings import EXTENDED, Settings
from perfscope.gate.stopping import sequential_rule
from perfscope.reports.gate.registry import FORMATS
from perfscope.units import format_ratio
from tests.support.ci_shell import ACTION, ROOT, Shell, made_shell, parsed, scripts

DOCUMENT = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?<![\w./-])perfscope (?=check|baseline|history|run\b)")
KEYS = tuple(one.name for one in fields(CheckTable))
EXIT_CODES = (0, 1, 2, 3, 4, 5)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return made_shell(tmp_path)


def test_every_action_is_pinned_by_commit() -> None:
    """A tag can be moved to other code; what has no commit of its own yet says that one is to be chosen."""
    found = []
    for folder, pattern in (
        (ROOT, "action.y*ml"),
        (ROOT / ".github", "**/*.y*ml"),
        (ROOT / "docs", "**/*.md"),
    ):
        for file in folder.glob(pattern):
            found += re.findall(r"^\s*(?:- )?uses: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) >= 12
    pinned = r"[\w./-]+@(?:[0-9a-f]{40} # v\d+\.\d+\.\d+|COMMIT # a commit you have reviewed.*)"
    assert [one for one in found if not re.fullmatch(pinned, one)] == []
    assert not [one for one in found if "@COMMIT" in one and one.startswith("actions/")]


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(DOCUMENT) if found == language]


def jenkins() -> str:
    (text,) = blocks("groovy")
    return text


def jenkins_scripts() -> list[str]:
    """Shell of every `sh` step."""
    several = re.findall(r"'''(.*?)'''", jenkins(), re.DOTALL)
    return [*several, *re.findall(r"\bsh '([^'\n]+)'", jenkins())]


def shell_texts() -> list[str]:
    """Every piece of the document that is meant for a shell, inline code included."""
    prose = BLOCK.sub("", DOCUMENT)
    inline = re.findall(r"`([^`\n]+)`", prose)
    return [
        *(text for one in blocks("yaml") for text in scripts(yaml.safe_load(one))),
        *blocks("bash"),
        *jenkins_scripts(),
        *inline,
    ]


def calls(text: str) -> Iterator[list[str]]:
    """Words of every `perfscope ...` in a shell text, up to what ends the command."""
    for line in text.replace("\\\n", " ").splitlines():
        for found in CALL.finditer(line.partition(" # ")[0]):
            reader = shlex.shlex(
                line[found.start() :].partition(" # ")[0], posix=True, punctuation_chars=True
            )
            reader.whitespace_split = True
            reader.commenters = ""
            words: list[str] = []
            for word in reader:
                if word and set(word) <= set("|&;<>()"):
                    break
                words.append(word)
            yield words


ALL_CALLS = [words for text in shell_texts() for words in calls(text)]


# -- the document ----


def test_there_are_recipes_for_every_system() -> None:
    workflows = [yaml.safe_load(text) for text in blocks("yaml")]
    assert len(workflows) == 6
    github = [one for one in workflows if isinstance(one, dict) and "jobs" in one]
    assert len(github) == 3
    for one in github:
        assert one[True]  # YAML 1.1 reads the key `on` as true
        assert one["permissions"] == {"contents": "read"}
        for job in one["jobs"].values():
            assert job["runs-on"] and job["timeout-minutes"]
            assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    (gitlab,) = [one for one in workflows if isinstance(one, dict) and "jobs" not in one]
    for job in gitlab.values():
        assert job["allow_failure"] == {"exit_codes": [Outcome.INCONCLUSIVE.value]}
    assert gitlab["performance"]["artifacts"]["reports"]["junit"] == "performance.xml"


def test_no_script_contains_text_that_somebody_else_may_choose() -> None:
    documents = [ACTION, *(yaml.safe_load(text) for text in blocks("yaml"))]
    found = [text for one in documents for text in scripts(one)]
    assert len(found) > 10
    assert [text for text in found if "${{" in text] == []


def test_nothing_installs_the_package_of_the_same_name_from_the_index() -> None:
    text = DOCUMENT + (ROOT / "action.yml").read_text(encoding="utf-8")
    assert re.findall(r"pip install\b[^\n]*\s\"?perfscope\b", text) == []


@pytest.mark.parametrize("words", ALL_CALLS, ids=" ".join)
def test_every_command_line_uses_options_that_there_are(words: list[str]) -> None:
    values = parsed(words)
    for word in values.get("formats") or ():
        assert word.partition("=")[0] in FORMATS
    if words[1] == "check":
        with_overrides(
            Settings(),
            threshold=values.get("threshold"),
            metric_options=values.get("metric_options") or (),
            allow=values.get("allow") or (),
        )


def test_the_command_lines_were_found() -> None:
    """A guard of the tests above: an empty list of command lines would pass them."""
    kinds = [words[1:3] if words[1] == "baseline" else words[1:2] for words in ALL_CALLS]
    assert kinds.count(["check"]) >= 10
    for wanted in (["baseline", "update"], ["baseline", "list"], ["history"], ["run"]):
        assert wanted in kinds
    used = {word.partition("=")[0] for words in ALL_CALLS for word in words}
    assert {"--base-ref", "--baseline", "--calibrate", "--history", "--junit", "--html"} <= used


def test_an_option_that_there_is_not_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["perfscope", "check", "--pears", "8", "--", "python"])
    with pytest.raises(click.BadParameter):
        parsed(["perfscope", "check", "--pairs", "many", "--", "python"])


@pytest.mark.parametrize("code", EXIT_CODES)
def test_jenkins_keeps_the_code_and_calls_an_undecided_check_unstable(code: int, shell: Shell) -> None:
    (script,) = [text for text in jenkins_scripts() if "perfscope check" in text]
    done = shell.run(script.replace(". .venv/bin/activate", ":"), {"CHANGE_TARGET": "main"}, code)
    assert done.returncode == code
    assert f"if (code == {Outcome.INCONCLUSIVE.value}) {{\n            unstable(" in jenkins()
    assert jenkins().count("{") == jenkins().count("}")


@pytest.mark.parametrize("code", EXIT_CODES)
def test_recipes_of_github_fail_as_the_table_says(code: int, shell: Shell) -> None:
    found = [
        text
        for one in blocks("yaml")
        for text in scripts(yaml.safe_load(one))
        if "perfscope check" in text and "pip install" not in text
    ]
    assert len(found) == 4
    for text in found:
        done = shell.run(text, {"GITHUB_BASE_REF": "main"}, code)
        assert bool(done.returncode) == (code not in (0, Outcome.INCONCLUSIVE.value)), text


@pytest.mark.parametrize("code", EXIT_CODES)
def test_the_recipe_of_gitlab_keeps_the_code_and_draws_the_history_all_the_same(
    code: int, shell: Shell
) -> None:
    shell.fake("pip", "#!/bin/bash\n")
    (recipe,) = [
        one for text in blocks("yaml") if "jobs" not in (one := yaml.safe_load(text)) and "image" in text
    ]
    assert shell.run("\n".join(recipe["performance"]["script"]), {}, code).returncode == code
    assert shell.run("\n".join(recipe["performance-history"]["script"]), {}, code).returncode == code
    assert shell.calls()[-1][0] == "history"


# -- the cluster job ----


@pytest.fixture
def job() -> str:
    (text,) = [text for text in blocks("bash") if "#SBATCH" in text]
    return text


def test_the_job_script_is_bash(job: str, tmp_path: Path) -> None:
    file = tmp_path / "check.sbatch"
    file.write_text(job)
    subprocess.run(["bash", "-n", str(file)], check=True)
    assert job.startswith("#!/bin/bash\n#SBATCH ")
    head = job.splitlines()[1:]
    options = [line for line in head if line.startswith("#SBATCH")]
    assert head[: len(options)] == options  # Slurm reads none behind the first command
    assert "#SBATCH --exclusive" in options


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ({"UPDATE_BASELINE": "yes"}, ["run"] * 8 + ["baseline"]),
        ({"BASE_REF": "origin/main"}, ["check"]),
        ({}, ["check"]),
    ],
)
def test_the_job_script_runs_in_each_of_its_modes(
    job: str, shell: Shell, mode: dict[str, str], wanted: list[str]
) -> None:
    (shell.folder / ".venv" / "bin").mkdir(parents=True)
    (shell.folder / ".venv" / "bin" / "activate").touch()
    slurm = {"SLURM_SUBMIT_DIR": str(shell.folder), "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ID": "77"}
    code = 4 if wanted == ["check"] else 0
    assert shell.run(job, {**slurm, **mode}, code).returncode == code
    made = shell.calls()
    assert [words[0] for words in made] == wanted
    for words in made:
        parsed(["perfscope", *words])
    last = parsed(["perfscope", *made[-1]])
    if wanted == ["check"]:
        expected = mode.get("BASE_REF")
        assert last["base_ref"] == expected if expected else str(last["baseline"]) == "performance/gpu.json"


# -- the reference ----


def table(first: str) -> list[list[str]]:
    """Cells of the table whose first heading is that."""
    lines = DOCUMENT.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_settings_has_every_key_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in table("key")}
    defaults = Settings()
    written = {
        "name": "the script's name",
        "most_pairs": f"{['never', 'once', 'twice'][EXTENDED]} `pairs`",
        "threshold": f'"{defaults.metrics["step_p10"].threshold:.0%}"',
        "early_stop": str(defaults.early_stop).lower(),
        "pin_heap": str(defaults.pin_heap).lower(),
        "allow": str(list(defaults.allow)),
        "metrics": "the table below",
        "baseline": "none",
        "history": "none",
    }
    assert documented == {key: written.get(key) or str(getattr(defaults, key)) for key in KEYS}
    assert (defaults.name, defaults.baseline, defaults.history, defaults.most_pairs) == (None,) * 4
    assert defaults.looks[-1] == EXTENDED * defaults.pairs
    (allow,) = [row[2] for row in table("key") if row[0] == "`allow`"]
    assert re.findall(r"`(\w+)`", allow) == [one.name for one in fields(Fingerprint)]
    (metrics,) = [row[2] for row in table("key") if row[0] == "`metrics`"]
    assert set(re.findall(r"`(\w+)`", metrics)) == {one.name for one in fields(MetricTable)}


def test_the_table_of_metrics_has_every_metric_as_it_is() -> None:
    written = [
        [
            f"`{one.id}`",
            one.unit,
            one.better,
            format_ratio(one.threshold, 0) + (" of the step" if one.scale == "step" else ""),
            one.severity,
        ]
        for one in METRICS.values()
    ]
    assert [row[:5] for row in table("metric")] == written


def test_the_table_of_exit_codes_is_that_of_outcomes() -> None:
    known = {one.value: one.word for one in Outcome} | {2: "usage"}
    assert {int(row[0]): row[1] for row in table("code")} == known


def test_the_table_of_pairs_is_what_the_rule_finds_in_normal_noise() -> None:
    (heading,) = [line for line in DOCUMENT.splitlines() if line.startswith("| spread of a pair |")]
    pairs = [int(number) for number in re.findall(r"(\d+) pairs", heading)]
    rows = table("spread of a pair")
    assert len(pairs) == 5 and len(rows) == 4
    settings = Settings()
    for spread, *cells in rows:
        for num, cell in zip(pairs, cells, strict=True):
            most = num * EXTENDED
            noise = np.exp(np.random.default_rng(num).normal(0, share_of(spread), (2000, most)))
            found = []
            for slower in (share_of(cell) - 0.004, share_of(cell) + 0.004):
                is_found, _ = sequential_rule(
                    noise * (1 + slower), looks(num, most), 0.05, settings.alpha, settings.fewest
                )
                found.append(is_found.mean())
            assert found[0] < 0.8 < found[1], (spread, num)


def test_the_fewest_pairs_that_prove_anything_are_those_of_the_rule() -> None:
    text = " ".join(DOCUMENT.split())
    (said,) = re.findall(r"Fewer than (\d+) pairs can prove nothing", text)
    (again,) = re.findall(r"At ([\d.]+) that takes (\d+) pairs or more", text)
    assert int(said) == int(again[1]) == fewest_pairs(Settings().alpha)
    assert float(again[0]) == Settings().alpha


def share_of(per_cent: str) -> float:
    return float(per_cent.removesuffix(" %")) / 100


def test_the_example_of_a_configuration_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text(text)
    read = load_settings(tmp_path)
    assert (read.pairs, read.allow) == (12, ("perfscope",))
    assert read.metrics["step_p10"].threshold == pytest.approx(0.04)
    assert (read.metrics["peak_memory"].severity, read.metrics["stalls"].severity) == ("error", "off")


def test_links_within_the_document_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", DOCUMENT), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
    assert [one for one in re.findall(r"\]\(#([\w-]+)\)", DOCUMENT) if one not in anchors] == []
    for file in re.findall(r"\]\((?!https?:|#)([^)#]+)", DOCUMENT):
        assert (ROOT / "docs" / file).exists(), file


def test_the_document_lists_what_the_action_takes_and_gives() -> None:
    (line,) = re.findall(r"^Inputs: (.*?)\. Outputs: (.*?)\.", DOCUMENT, re.MULTILINE | re.DOTALL)
    inputs, outputs = ([one for one in re.findall(r"`([\w-]+)`", part) if one != "false"] for part in line)
    assert sorted(inputs) == sorted(ACTION["inputs"])
    assert outputs == list(ACTION["outputs"])
    used = [
        set(step["with"])
        for text in blocks("yaml")
        for job in (yaml.safe_load(text).get("jobs", {}) if "jobs:" in text else {}).values()
        for step in job["steps"]
        if step.get("uses", "").startswith("OWNER/perfscope@")
    ]
    assert len(used) == 1 and used[0] <= set(ACTION["inputs"])
