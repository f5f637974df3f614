"""The report as data. `build.py` makes one, every renderer draws the same one.

A Report holds sections, a section holds blocks: Table, Chart, Note, Facts, FindingList, Topology or
Timeline. Charts with two axes of figures are in `curves.py`, pictures of machines in `machine_picture.py`,
units in `values.py`. Cells keep the raw value (ns, bytes, ratio ...) so that tables sort by value;
`Column.text` is the only way a value becomes text. Every string in a Report has gone through
`display.visible`: control and direction-changing characters are spelled out and monstrous names are
shortened, whatever the renderer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct, structs

from perfscope import units
from perfscope.messages.step_parts import TITLES
from perfscope.reports.chart import Chart as Chart
from perfscope.reports.curves import Curve as Curve
from perfscope.reports.curves import CurveChart as CurveChart
from perfscope.reports.curves import IntervalBar as IntervalBar
from perfscope.reports.curves import IntervalBars as IntervalBars
from perfscope.reports.distributions import HeatMap
from perfscope.reports.gate_history.chart import HistoryChart as HistoryChart
from perfscope.reports.machine_picture import Device as Device
from perfscope.reports.machine_picture import Machine as Machine
from perfscope.reports.machine_picture import MemoryNode as MemoryNode
from perfscope.reports.machine_picture import Rail as Rail
from perfscope.reports.machine_picture import Socket as Socket
from perfscope.reports.machine_picture import TopologyPicture as TopologyPicture
from perfscope.reports.values import PREFIXED as PREFIXED
from perfscope.reports.values import Unit as Unit
from perfscope.reports.values import Value as Value
from perfscope.reports.values import format_value as format_value

if TYPE_CHECKING:
    from perfscope.analysis.critical.results import CriticalPath
    from perfscope.analysis.timeline_extract import TimelineExtract


class Column(Struct, frozen=True, kw_only=True):
    """One column of a Table.

    `modeled` marks figures computed from shapes rather than measured; renderers say so beside the title.
    `bar` names a part color: the cell gets an inline bar in proportion to the column's maximum.
    """

    key: str
    title: str
    unit: Unit = Unit.TEXT
    hint: str = ""
    modeled: bool = False
    bar: str | None = None
    primary: bool = False  # kept where there is room for few columns (terminal, narrow screens)
    signed: bool = False  # a change: what is more carries a plus
    linked: bool = False  # its cells carry the links of their rows
    on_paper: bool = True  # False: paper has no room for it

    @property
    def align(self) -> str:
        return "left" if self.unit in (Unit.TEXT, Unit.CODE) else "right"

    def text(self, value: Value) -> str:
        text = format_value(self.unit, value)
        if not isinstance(value, (int, float)):
            return text
        if self.signed:
            return units.with_sign(text, value)
        return f"−{text[1:]}" if text.startswith("-") else text


class RowNote(Struct, frozen=True, kw_only=True):
    """What a terminal prints below a row, whose columns are narrow there.

    `name`: replaces the first cell where this does not fit, and only then `text` is needed; "": always.
    """

    text: str
    name: str = ""


class Facet(Struct, frozen=True, kw_only=True):
    """What a page's reader may choose rows by: the values of each row, parallel to the table's rows."""

    title: str
    values: tuple[tuple[str, ...], ...]

    def of(self, row: int) -> list[str]:
        return [value for value in self.values[row] if value]


class Table(Struct, frozen=True, kw_only=True):
    """Rows of raw values, one per column. `sorted_by`: (column key, descending) of their order, or None.

    `cards`: on narrow screens each row stands as a card, its cells one under the other with their titles.
    `heat`: a tone of HEAT_TONES or "" for each cell, parallel to `rows`; () = a table without colors. Every
    colored cell holds its number, and `heat_mark` follows those of a good tone: color is never alone.
    `links`: address of each row, "": it has none; () = no row has one. `facets`: lists of choices on a page.
    `row_notes`: of each row, None: it has none; () = no row has one.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    caption: str = ""
    empty: str = "Nothing to show."
    sorted_by: tuple[str, bool] | None = None
    print_rows: int = 60  # rows on paper; the others are counted there, and are in the HTML and JSON
    terminal_rows: int = 0  # rows in a terminal; 0: the table is left to the HTML
    row_notes: tuple[RowNote | None, ...] = ()
    terminal_form: Literal["columns", "reasons", "sentences", "episodes", "changes", "none"] = "columns"
    terminal_title: bool = False  # whether the terminal shows the title: it states over what time sums go
    cards: bool = False
    heat: tuple[tuple[str, ...], ...] = ()
    heat_mark: str = ""
    links: tuple[str, ...] = ()
    facets: tuple[Facet, ...] = ()

    def facets_of(self, row: int) -> list[list[str]]:
        """The row's values of each facet."""
        return [facet.of(row) for facet in self.facets]

    def tone(self, row: int, column: int) -> str:
        """The cell's tone, or ""."""
        return self.heat[row][column] if self.heat else ""

    def cell(self, row: int, column: int) -> str:
        """The cell as a person reads it, with the mark of good tones."""
        text = self.columns[column].text(self.rows[row][column])
        marked = self.heat_mark and self.tone(row, column).startswith("good")
        return f"{text} {self.heat_mark}" if marked else text

    def trimmed(self) -> Table:
        """Without columns that are empty in every row, main ones excepted."""
        kept = [
            index
            for index, column in enumerate(self.columns)
            if column.primary or any(row[index] not in (None, "") for row in self.rows)
        ]
        return self.with_columns(kept) if self.rows else self

    def with_columns(self, kept: Sequence[int]) -> Table:
        """With these columns alone, by their indices."""
        if len(kept) == len(self.columns):
            return self
        return structs.replace(
            self,
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            heat=tuple(tuple(row[index] for index in kept) for row in self.heat),
        )

    def maximum(self, index: int) -> float:
        """The largest finite value of a column, or 0."""
        values = [row[index] for row in self.rows]
        finite = [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
        return max(finite, default=0.0)


class ChartPart(Struct, frozen=True, kw_only=True):
    """One color of a stacked chart. `key` is also the CSS variable and the legend's pattern."""

    key: str
    title: str
    hint: str = ""

    @classmethod
    def of_step(cls, key: str, hint: str = "") -> ChartPart:
        """A part of the step, under the title that it has everywhere."""
        return cls(key=key, title=TITLES[key], hint=hint)


class Bar(Struct, frozen=True, kw_only=True):
    """One bar; `values` has one entry per Part, in the chart's unit. The parts add up to `total` exactly.

    `end` is what follows the bar where the total says little, such as 100 % of the pages.
    """

    label: str
    values: tuple[float, ...]
    note: str = ""
    end: str = ""

    @property
    def total(self) -> float:
        return sum(self.values)


class StackedBars(Chart, Struct, frozen=True, kw_only=True):
    id: str
    title: str
    parts: tuple[ChartPart, ...]
    bars: tuple[Bar, ...]
    caption: str = ""
    unit: Unit = Unit.TIME  # TIME in ns, or RATIO
    labelled: bool = True  # False: one bar, whose title says what it is

    @property
    def longest(self) -> float:
        return max((bar.total for bar in self.bars), default=0)


class LaneSpan(Struct, frozen=True, kw_only=True):
    """One piece of work in a lane: `part` is a key of the chart's parts, times in ns since its beginning."""

    part: str
    start: int
    end: int
    text: str  # that is in it where it fits
    title: str  # what it is, in full


class Lane(Struct, frozen=True, kw_only=True):
    """What one rank did, in order of time. `end`: words behind the lane."""

    label: str
    spans: tuple[LaneSpan, ...]
    end: str = ""


class LaneChart(Chart, Struct, frozen=True, kw_only=True):
    """Lanes on one axis of time, from 0 to `length` ns; what is not work stays empty."""

    id: str
    title: str
    parts: tuple[ChartPart, ...]
    lanes: tuple[Lane, ...]
    length: int
    caption: str = ""


class ChartLine(Struct, frozen=True, kw_only=True):
    """One line of a Series: x positions and values in ns, equally long; `low`, `high` where thinned."""

    label: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


class LineChart(Chart, Struct, frozen=True, kw_only=True):
    """Lines on one axis each. `shaded`: first and last x of each traced window. `band`: what bands cover.

    `steps`: number of the first step of each point and, last, of the step behind them: a point leads to its
    steps in the timeline; () = it does not. `slowest`: the rank with the longest step at each point.
    """

    id: str
    title: str
    x_title: str
    lines: tuple[ChartLine, ...]
    caption: str = ""
    shaded: tuple[tuple[int, int], ...] = ()
    band: str = ""
    compact: bool = False  # one line, whose name the legend has
    steps: tuple[int, ...] = ()
    slowest: tuple[int, ...] = ()


class Note(Struct, frozen=True, kw_only=True):
    """A sentence. `tone`: plain, good, caution, refuse (what follows may not be compared)."""

    text: str
    tone: str = "plain"


class FactList(Struct, frozen=True, kw_only=True):
    """Names and values, one under the other."""

    id: str
    title: str
    pairs: tuple[tuple[str, str], ...]


class PageLink(NamedTuple):
    """To a place in the page. `fragment`: of its address, percent-encoded; see assets/links.js."""

    text: str
    fragment: str


class FindingCard(Struct, frozen=True, kw_only=True):
    """One finding, ready to print. `gain` and `share` are text; `gain_ratio` draws the bar.

    `is_verdict`: its title is the report's headline. `heading`: what a list calls it beside that headline.
    `symptoms`: cards of findings that are its consequences.
    """

    slug: str
    title: str
    detail: str
    action: str
    gain: str
    share: str
    gain_ratio: float | None
    where: str
    is_verdict: bool = False
    heading: str = ""
    symptoms: tuple[FindingCard, ...] = ()
    symptoms_title: str = ""
    confidence: str = ""  # a sentence
    links: tuple[PageLink, ...] = ()  # a page leaves out those that lead nowhere


class FindingList(Struct, frozen=True, kw_only=True):
    id: str
    cards: tuple[FindingCard, ...]
    empty: str


class TimeLabel(Struct, frozen=True, kw_only=True):
    """A stretch of a time axis that carries a name. Ns since the axis' start."""

    start_ns: int
    end_ns: int
    title: str
    detail: str = ""


class CounterLine(Struct, frozen=True, kw_only=True):
    """One track of a counter chart; a gap is nan in `mean`. `low`, `high` bound what a point stands for."""

    label: str
    t_ns: tuple[int, ...]  # since the axis' start
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    peak: float | None = None
    peak_source: str = ""
    quality: str = "exact"
    note: str = ""  # beside the label instead of the mean, where that says nothing


class CounterChart(Struct, frozen=True, kw_only=True):
    """Tracks of one group that share a value axis."""

    id: str
    title: str
    unit: Unit
    lines: tuple[CounterLine, ...]
    num_left_out: int = 0  # lines of this group with a lower mean that are not drawn


class Counters(Chart, Struct, frozen=True, kw_only=True):
    """Small charts one above the other on one time axis of `span_ns`."""

    id: str
    title: str
    span_ns: int
    charts: tuple[CounterChart, ...]
    windows: tuple[TimeLabel, ...] = ()  # traced
    windows_title: str = "traced window"
    disturbances: tuple[TimeLabel, ...] = ()
    steps: TimeLabel | None = None  # first step's start to last step's end
    caption: str = ""


class RoofPoint(Struct, frozen=True, kw_only=True):
    """One layer and phase (METRICS §5)."""

    label: str
    phase: str  # forward, backward
    intensity: float  # FLOP per byte
    flops_per_s: float
    time_ns: int  # per step
    fraction: float  # of what is attainable at that intensity
    bound: str


class RooflineChart(Chart, Struct, frozen=True, kw_only=True):
    """Achieved against attainable FLOP/s over arithmetic intensity, both axes logarithmic."""

    id: str
    title: str
    peak_flops_per_s: float
    peak_text: str
    bandwidth_bytes_per_s: float
    bandwidth_text: str
    points: tuple[RoofPoint, ...]  # longest first
    caption: str = ""


class TimelineLane(Struct, frozen=True, kw_only=True):
    """A counter under the spans of one window, on the window's own time axis (ns since its start)."""

    window: int
    host: str
    label: str
    unit: Unit
    t_ns: tuple[int, ...]
    mean: tuple[float, ...]
    top: float  # of the value axis, which starts at 0


class LaneGrouping(Struct, frozen=True, kw_only=True):
    """One way to group the lanes of a timeline by rank: `group_of` has a rank's index into `names`.

    `key` stands for it in links; ranks without a group come last.
    """

    key: str
    title: str
    names: tuple[str, ...]
    group_of: Mapping[int, int]


class ComparedRuns(Struct, frozen=True, kw_only=True):
    """Of a timeline of two runs: each of its windows is a pair of steps that begin at 0.

    Attributes:
        runs: how they are called, before and after.
        ranks: rank of the extract -> (index into `runs`, number of the rank in that run).
        steps: of each window the steps of both runs: (number, duration in ns).
    """

    runs: tuple[str, str]
    ranks: Mapping[int, tuple[int, int]]
    steps: tuple[tuple[tuple[int, int], tuple[int, int]], ...]


class Timeline(Struct, frozen=True, kw_only=True, eq=False):
    """The traced windows. `focus` is (window, start_ns, dur_ns) of the step a still picture should show."""

    id: str
    title: str
    extract: TimelineExtract
    strings: tuple[str, ...]  # extract.strings, made visible
    focus: tuple[int, int, int] | None
    caption: str = ""
    lanes: tuple[TimelineLane, ...] = ()
    disturbances: tuple[tuple[int, TimeLabel], ...] = ()  # (window, mark since the window's start)
    paths: tuple[CriticalPath, ...] = ()
    groupings: tuple[LaneGrouping, ...] = ()
    compared: ComparedRuns | None = None  # None: the timeline of one run

    def rank_name(self, rank: int) -> str:
        """As it is drawn beside the lanes of `rank`."""
        return f"rank {rank if self.compared is None else self.compared.ranks[rank][1]}"


Block = Table | Chart | TopologyPicture | Note | FactList | FindingList | Timeline


class Section(Struct, frozen=True, kw_only=True):
    """A part of a report.

    Attributes:
        in_terminal: what of it a terminal shows without being asked for it.
        tables: those that a terminal shows: "chosen" and "spaced" (with a blank line in front of each block)
            those with `terminal_rows`, "every" all of them, with titles and captions.
    """

    id: str
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""  # one sentence under the title: what the section says
    in_notices: bool = False  # the report's notices say all of it
    in_terminal: Literal["all", "blocks", "lead", "nothing"] = "all"
    tables: Literal["chosen", "spaced", "every"] = "chosen"


class KeyFigure(Struct, frozen=True, kw_only=True):
    """One tile of the strip at the top."""

    id: str
    title: str
    value: str
    note: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """What bounds the step, in words with figures. `tone`: good, plain, caution.

    `parts`: the step's composition in words, left out beside the bar that draws it. `points`: reasons, each
    a sentence of its own. `symptoms`: findings that are its consequences, a few words each.
    """

    headline: str
    detail: str
    action: str
    tone: str
    confidence: str = ""  # a sentence
    saving: str = ""  # a sentence
    parts: str = ""  # a sentence
    points: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    links: tuple[PageLink, ...] = ()  # a page leaves out those that lead nowhere

    @property
    def in_words(self) -> str:
        """Composition and detail, where no bar is drawn."""
        return f"{self.parts} {self.detail}".strip()


class Report(Struct, frozen=True, kw_only=True, eq=False):
    """Everything a renderer needs. `document` is the JSON report (see document.py)."""

    title: str
    subtitle: str
    verdict: Verdict
    overview: StackedBars | None  # one bar: the mean traced step over all ranks
    figures: tuple[KeyFigure, ...]
    sections: tuple[Section, ...]
    document: Mapping[str, object]
    version: str
    context: tuple[str, ...] = ()  # who, where and when, each a few words
    trend: tuple[LineChart | HeatMap | Note, ...] = ()  # the whole run, small; a note: why it is missing
    notices: tuple[Note, ...] = ()  # what must be known before any figure is read; under the verdict

    def section(self, section_id: str) -> Section:
        """The section with that id. Raises KeyError."""
        for section in self.sections:
            if section.id == section_id:
                return section
        raise KeyError(section_id)
