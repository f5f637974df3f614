"""The HTML file: offline, inert, readable without scripts, contrast, and every section of the model."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from perfscope.analysis.missing import missing_figure
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.asset_files import asset
from perfscope.reports.build import build_report
from perfscope.reports.drawing.patterns import PATTERNS
from perfscope.reports.html import json_for_script, render_html, script_text
from perfscope.reports.palette import light_palette, theme_blocks
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from tests.support.records import run_record
from tests.support.stated_finding import stated
from tests.support.synthetic_gpu_machine import hostile_machine
from tests.unit.reports.test_model import empty_analysis
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

HOSTILE = (
    "</SCRIPT ><script>alert(1)</script>",
    "<!--<script>",
    "--><img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>",
    "line\u2028separator\u2029end",
    "\u202egnp.exe\u2066",
    "{{ 7*7 }}{% raw %}",
    "#eval(1) $x$ *b* @cite <label> \\",
    "javascript:alert(4)",
    "lone \ud800 surrogate",
    "nul \x00 bell \x07 escape \x1b[31m",
    "x" * 100_000,
)


class Page(HTMLParser):
    """Elements, text by section, script bodies; notes what is not well formed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.counts: Counter[str] = Counter()
        self.sections: list[tuple[str, str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.text: list[str] = []
        self.csp = ""
        self._open = ""
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.counts[tag] += 1
        self.attributes += [(tag, name, value) for name, value in values.items()]
        self._open = tag
        if tag == "section":
            self._section = values["id"]
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.csp = values["content"]
        if tag == "script":
            self.scripts.append("")
        if tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open == "style":
            self.styles[-1] += data
        else:
            self.text.append(data)
            if self._open == "h2":
                self.sections.append((self._section, data))


def hostile_analysis(text: str) -> RunAnalysis:
    """The synthetic run with `text` wherever a string from outside can stand."""
    analysis = synthetic_analysis()
    run = analysis.run.document | {
        "name": text,
        "command": ["python", text],
        "labels": {text: text},
        "cwd": text,
        "launcher": text,
        "git": {"commit": text, "dirty": True},
        "packages": {text: text},
        "environment": {text: text},
        "attach_notes": [text],
        "perfscope_version": text,
        "exit": {"code": None, "signal": text},
    }
    finding = stated(
        FindingKind.COMM_BOUND, text, text, text, gain_ns=1, gain_ratio=0.5, layer=text, collective=text
    )
    return structs.replace(
        analysis,
        run=run_record(run),
        ranks=tuple(structs.replace(rank, host=text) for rank in analysis.ranks),
        layers=tuple(structs.replace(layer, layer=text, module_type=text) for layer in analysis.layers[:2]),
        collectives=tuple(
            structs.replace(c, collective=text, group=text, dtype=text) for c in analysis.collectives
        ),
        calls=tuple(structs.replace(c, collective=text, group=text) for c in analysis.calls[:2]),
        findings=(finding,),
        missing=(missing_figure(Figure.OTHER, Cause.PROBE_LIMIT, what=text, reason=text),),
        provenance=tuple(
            structs.replace(p, path=text, notes=(text,), unclassified=((text, 3),))
            for p in analysis.provenance[:2]
        ),
        machine=hostile_machine(text, analysis.layers[:2]),
    )


def hostile_page(text: str) -> str:
    timeline = synthetic_timeline(num_windows=1, steps=1)
    lanes = tuple(
        structs.replace(lane, host=text, label=text, role=text) for lane in timeline.windows[0].lanes
    )
    window = structs.replace(timeline.windows[0], lanes=lanes)
    strings = tuple(text for _ in timeline.strings)
    return render_html(
        build_report(hostile_analysis(text), structs.replace(timeline, windows=(window,), strings=strings))
    )


@pytest.fixture(scope="module")
def html() -> str:
    return render_html(build_report(synthetic_analysis(), synthetic_timeline()))


def test_policy_admits_only_the_script_and_style_inside(html: str) -> None:
    page = Page(html)
    script = next(body for body in page.scripts if body.startswith("(()"))
    for kind, body in (("script", script), ("style", page.styles[0])):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.csp
    assert page.csp.startswith("default-src 'none';")
    assert "unsafe" not in page.csp


def test_page_has_one_data_block_and_one_script(html: str) -> None:
    page = Page(html)
    assert page.counts["script"] == 2
    assert page.counts["style"] == 1
    assert json.loads(page.scripts[0])["timeline"]["windows"]


def test_nothing_is_styled_or_handled_inline(html: str) -> None:
    """The policy would refuse it: no style or on… attribute anywhere."""
    names = {name for _, name, _ in Page(html).attributes}
    assert "style" not in names
    assert not [name for name in names if name.startswith("on")]


def test_no_address_outside_the_file(html: str) -> None:
    page = Page(html)
    for tag, name, value in page.attributes:
        if name in ("href", "src", "action", "data", "xlink:href", "srcset"):
            assert value.startswith("#"), (tag, name, value)
    space = "http://www.w3.org/2000/svg"  # a name, not an address
    assert not re.findall(r"(?:https?:)?//[a-z0-9]", html.replace(space, "").replace(script_text(), ""))
    code = "\n".join(line.split("//")[0] for line in script_text().replace(space, "").splitlines())
    assert "http" not in code
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import\(|EventSource|sendBeacon)\b", code)
    assert "url(" not in page.styles[0]
    assert "@import" not in page.styles[0]


def test_scripts_never_write_markup() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script_text())


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_strings_stay_text(html: str, text: str) -> None:
    hostile = hostile_page(text)
    page, plain = Page(hostile), Page(html)
    assert {"machine", "counters", "roofline", "traffic", "stacks"} <= {name for name, _ in page.sections}
    hostile.encode()  # no half surrogate left
    for tag in ("script", "style", "meta", "canvas", "noscript", "nav", "img", "iframe", "object", "base"):
        assert page.counts[tag] == plain.counts[tag], tag
    assert not [n for _, n, _ in page.attributes if n.startswith("on")]
    data = json.loads(page.scripts[0])
    assert all(len(string) < 400 for string in data["timeline"]["strings"])
    assert not re.search("[\u2028\u2029\u202a-\u202e\u2066-\u2069\x00-\x08\x1b]", hostile)
    assert len(hostile) < 2_000_000


def test_template_markup_in_names_is_not_run(html: str) -> None:
    assert "{{ 7*7 }}" in "".join(Page(hostile_page(HOSTILE[6])).text)


@settings(max_examples=60)
@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c))
)
def test_escaped_json_reads_back_and_cannot_close_its_block(value: object) -> None:
    text = json_for_script(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)
    assert text.isascii()


def test_escaped_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_for_script(float("nan"))


def test_report_reads_without_scripts(html: str) -> None:
    """Tables, charts and verdict are in the HTML itself."""
    analysis, text = synthetic_analysis(), " ".join(Page(html).text)
    for layer in analysis.layers:
        assert layer.layer in text
    assert analysis.findings[0].text.title in text
    assert "interactive timeline needs JavaScript" in text
    assert html.count('<rect class="seg') >= 4 * 5


def test_headline_and_action_are_said_once_with_the_ways_to_their_evidence() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    text = "".join(Page(render_html(report)).text)
    assert text.count(report.verdict.headline) == text.count(report.verdict.action) == 1
    assert report.verdict.links
    assert render_html(report).index(report.verdict.links[0].text) < render_html(report).index("<section")


def test_size_without_data_is_within_budget() -> None:
    assert len(render_html(build_report(empty_analysis(), None)).encode()) < 100_000


def test_a_row_of_a_table_costs_few_bytes() -> None:
    """Pages of many ranks are made of rows: 1,024 ranks in 3 MB, about half of it rows of four tables."""
    few, many = (render_html(build_report(synthetic_analysis(num_ranks=num), None)) for num in (64, 320))
    rows = many.count("<tr>") - few.count("<tr>")
    assert rows >= 2 * 256
    assert (len(many) - len(few)) / rows < 700
    assert '<td class="right' not in many


def test_dark_blocks_agree() -> None:
    """The system's dark theme and the toggle's are the same colors, and define what the light one does."""
    light, dark_media, dark_toggle = theme_blocks(asset("report.css"))
    assert dark_media[1] == dark_toggle[1]
    assert set(light[1]) == set(dark_media[1])
    assert dict(light_palette()) == light[1]


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("block", [0, 1], ids=["light", "dark"])
def test_text_contrast_is_at_least_4_5(block: int) -> None:
    colors = theme_blocks(asset("report.css"))[block][1]
    pairs = [(ink, ground) for ink in ("ink", "ink-2", "accent") for ground in ("bg", "surface", "raised")]
    pairs += [(f"{name}-ink", name) for name in colors if f"{name}-ink" in colors]
    pairs += [("bg", "ink"), ("bg", "accent")]  # the hint and the cursor's time, printed the other way round
    poor = {pair: contrast(colors[pair[0]], colors[pair[1]]) for pair in pairs}
    assert not {pair: ratio for pair, ratio in poor.items() if ratio < 4.5}


@pytest.mark.parametrize("block", [0, 1], ids=["light", "dark"])
def test_colored_parts_stand_out_from_the_page(block: int) -> None:
    """3:1 for what carries meaning; idle and waiting are meant to recede and carry labels or hatching."""
    colors = theme_blocks(asset("report.css"))[block][1]
    quiet = {"idle", "idle_host_wait", "idle_kernel_wait", "idle_other", "wait"}
    parts = {name[5:] for name in colors if name.startswith("part-") and not name.endswith("-ink")} - quiet
    assert len(parts) >= 9
    poor = {part: contrast(colors[f"part-{part}"], colors["bg"]) for part in parts}
    assert not {part: ratio for part, ratio in poor.items() if ratio < 3}


def test_every_hatched_part_has_its_pattern(html: str) -> None:
    for key in PATTERNS:
        assert f'id="p-{key}"' in html
