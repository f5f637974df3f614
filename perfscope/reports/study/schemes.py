"""Section "Which is fastest": settings side by side, their bytes, memory and losses, and pairs of them."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope import units
from perfscope.analysis.study.results import Pair, SchemeRow, SchemeStudy, StudyAnalysis, Turn
from perfscope.messages.efficiency import TITLES
from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Block,
    Column,
    IntervalBar,
    IntervalBars,
    Note,
    Section,
    Table,
    Unit,
    Value,
)
from perfscope.reports.study.communication import exposed_blocks
from perfscope.reports.study.formatting import (
    LONGEST,
    MARK,
    TYPICAL,
    compositions,
    efficiency_tone,
    interval_text,
    listed,
    ratio_tone,
)
from perfscope.reports.study.learning import ranking_blocks
from perfscope.reports.study.losses import loss_charts
from perfscope.reports.study.pareto import pareto_blocks
from perfscope.reports.values import TITLED
from perfscope.vocabulary.efficiency import ACCEPTABLE, SPLIT_BY_HOST, PopFactor

MOST_PAIRED = 16  # settings in the matrix; it must fit a page


def scheme_sections(study: StudyAnalysis) -> list[Section]:
    several = len(study.schemes) > 1
    return [
        _section(study, scheme_study, f"-{number}" if several else "")
        for number, scheme_study in enumerate(study.schemes, 1)
    ]


def _section(study: StudyAnalysis, schemes: SchemeStudy, suffix: str) -> Section:
    word = "scheme" if schemes.by == "scheme" else "setting"
    title = f"{word.capitalize()}s side by side"
    blocks: list[Block | None] = [
        *_sentences(schemes, study.headline),
        *ranking_blocks(study, schemes, suffix),
        _speeds(schemes, suffix),
        _composition(schemes, suffix),
        *exposed_blocks(schemes, word, suffix),
        _speed_table(schemes, word, suffix),
        _bytes_table(schemes, word, suffix),
        *pareto_blocks(schemes, suffix),
        _learning_table(schemes, word, suffix),
        _pop_table(schemes, word, suffix),
        *_turns(schemes, suffix),
        *loss_charts(study, [(row.title, row.runs) for row in schemes.rows], suffix),
        _matrix(schemes, word, suffix),
        _pairs_table(schemes, suffix),
    ]
    return Section(
        id=f"study-schemes{suffix}",
        tables="every",
        title=f"{title}: {visible(schemes.title, 160)}" if suffix and schemes.title else title,
        lead=visible(schemes.title, LONGEST),
        blocks=tuple(block for block in blocks if block is not None),
    )


def _sentences(schemes: SchemeStudy, headline: str) -> Iterator[Block]:
    """What stands above the report's figures already is not said again."""
    if schemes.refused:
        yield Note(text=visible(schemes.refused, LONGEST), tone="refuse")
    verdict = schemes.verdict
    if verdict is None or verdict.headline == headline:
        return
    texts = (visible(text, LONGEST) for text in (verdict.headline, verdict.why, verdict.turn) if text)
    yield Note(text=" ".join(texts))


def _speeds(schemes: SchemeStudy, suffix: str) -> IntervalBars | None:
    if all(row.samples_per_s is None for row in schemes.rows):
        return None
    has_intervals = any(row.samples_per_s_interval for row in schemes.rows)
    caption = (
        "The line across a bar's end is the 95 % interval of the median over repeats."
        if has_intervals
        else "No setting has repeats enough for an interval: their variance is not known."
    )
    return IntervalBars(
        id=f"study-speed-bars{suffix}",
        title="Throughput, median over repeats",
        axis_title=TITLED[Unit.SAMPLES],
        unit=Unit.SAMPLES,
        bars=tuple(
            IntervalBar(
                label=visible(row.title, 80),
                value=row.samples_per_s,
                low=row.samples_per_s_interval.low if row.samples_per_s_interval else None,
                high=row.samples_per_s_interval.high if row.samples_per_s_interval else None,
                note=counted(row.num_repeats, "repeat"),
                leading=schemes.verdict is not None
                and schemes.verdict.cannot_tell is None
                and row.title == schemes.verdict.winner,
            )
            for row in schemes.rows
        ),
        caption=caption,
    )


def _composition(schemes: SchemeStudy, suffix: str) -> Block | None:
    return compositions(
        f"study-composition{suffix}",
        "Where the step goes",
        ((row.title, row.composition) for row in schemes.rows),
        "Mean over ranks and traced steps.",
    )


def _against_best(schemes: SchemeStudy) -> dict[str, tuple[float, str | None]]:
    """Title -> (samples/s over those of the fastest, interval in words)."""
    measured = [row for row in schemes.rows if row.samples_per_s]
    if not measured:
        return {}
    best = measured[0]
    ratios: dict[str, tuple[float, str | None]] = {best.title: (1.0, None)}
    for pair in schemes.pairs:
        comparison = _seen_from(pair, best.title)
        if comparison is not None:
            ratios[comparison[0]] = (comparison[1], _words(comparison[2], comparison[3]))
    return ratios


def _words(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _seen_from(pair: Pair, title: str) -> tuple[str, float, float | None, float | None] | None:
    """(other, ratio of the other over `title`, its interval); None where `title` is not of the pair."""
    interval = pair.interval
    if pair.b == title:
        return (pair.a, pair.ratio, *((interval.low, interval.high) if interval else (None, None)))
    if pair.a != title or pair.ratio <= 0:
        return None
    turned = (1 / interval.high, 1 / interval.low) if interval and interval.low > 0 else (None, None)
    return (pair.b, 1 / pair.ratio, *turned)


def _speed_table(schemes: SchemeStudy, word: str, suffix: str) -> Table:
    against = _against_best(schemes) if schemes.pairs else {}  # of none may a ratio be formed
    batches = len({row.batch for row in schemes.rows}) > 1
    rows: list[tuple[Value, ...]] = []
    for row in schemes.rows:
        ratio, interval = against.get(row.title, (None, None))
        exposed = row.composition.share("exposed_comm") if row.composition else None
        rows.append(
            (
                visible(row.title, 80),
                row.samples_per_s,
                interval_text(Unit.SAMPLES, row.samples_per_s_interval),
                ratio,
                interval,
                row.step_ns,
                row.composition.exposed_comm if row.composition else None,
                exposed,
                visible(row.mesh, 40),
                row.batch if batches else None,
                row.num_repeats,
            )
        )
    return Table(
        id=f"study-schemes-table{suffix}",
        title="Speed",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            Column(key="rate", title="Samples/s", unit=Unit.SAMPLES, primary=True),
            Column(key="interval", title="95 % interval"),
            Column(key="ratio", title="Of the fastest", unit=Unit.FACTOR, primary=bool(schemes.pairs)),
            Column(key="ratio_interval", title="Its interval", hint="95 %, from repeats"),
            Column(key="step", title="Typical step", unit=Unit.TIME, primary=True),
            Column(key="exposed", title="Exposed comm.", unit=Unit.TIME, hint="of the mean traced step"),
            Column(
                key="share", title="Exposed share", unit=Unit.RATIO, hint="of the traced step", primary=True
            ),
            Column(key="mesh", title="Mesh"),
            Column(key="batch", title="Batch", unit=Unit.COUNT, hint="samples per step"),
            Column(key="repeats", title="Repeats", unit=Unit.COUNT),
        ),
        rows=tuple(rows),
        caption=" ".join(filter(None, (TYPICAL, visible(schemes.unseen, LONGEST)))),
    ).trimmed()


def _bytes_table(schemes: SchemeStudy, word: str, suffix: str) -> Table | None:
    rows = tuple(
        (
            visible(row.title, 80),
            WHERE.get(link.link_class, visible(link.link_class)),
            link.predicted,
            link.recorded,
            link.predicted_wire,
            link.wire,
            None if link.wire is None or link.predicted_wire <= 0 else link.wire / link.predicted_wire,
            visible(link.reason, LONGEST) or None,
        )
        for row in schemes.rows
        for link in row.links
    )
    if not rows:
        return None
    return Table(
        id=f"study-bytes-table{suffix}",
        title="Bytes per step over each class of link, all ranks together",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            Column(key="link", title="Link", primary=True),
            Column(key="predicted", title="By formula", unit=Unit.BYTES, primary=True),
            Column(
                key="recorded",
                title="Recorded",
                unit=Unit.BYTES,
                hint="of the calls that were made",
                primary=True,
            ),
            Column(
                key="predicted_wire",
                title="Wire, by formula",
                unit=Unit.BYTES,
                hint="what the backend's algorithm sends",
            ),
            Column(key="wire", title="Wire", unit=Unit.BYTES, hint="as the interfaces counted", primary=True),
            Column(key="factor", title="Wire over formula", unit=Unit.FACTOR),
            Column(key="reason", title="Reason for missing values"),
        ),
        rows=rows,
    ).trimmed()


def _learning_table(schemes: SchemeStudy, word: str, suffix: str) -> Table:
    return Table(
        id=f"study-learning-table{suffix}",
        title="Memory, batch and losses",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            Column(
                key="memory",
                title="Memory per rank",
                unit=Unit.BYTES,
                hint="peak of the rank with most",
                primary=True,
            ),
            Column(key="batch", title="Batch", unit=Unit.COUNT, hint="samples in a step, all ranks"),
            Column(
                key="effective",
                title="Effective batch",
                unit=Unit.COUNT,
                hint="samples behind one update",
                primary=True,
            ),
            Column(key="first", title="First loss", unit=Unit.LOSS),
            Column(key="last", title="Last loss", unit=Unit.LOSS, primary=True),
            Column(
                key="held_out",
                title="Held-out loss",
                unit=Unit.LOSS,
                hint="on samples it never saw",
                primary=True,
            ),
            Column(key="notes", title="Notes"),
        ),
        rows=tuple(
            (
                visible(row.title, 80),
                row.peak_memory_bytes,
                row.batch,
                row.effective_batch,
                row.first_loss,
                row.last_loss,
                row.held_out_loss,
                _notes(row),
            )
            for row in schemes.rows
        ),
    ).trimmed()


def _notes(row: SchemeRow) -> str | None:
    notes = [f"{row.num_diverged} of {row.num_repeats} diverged"] if row.num_diverged else []
    notes += [f"{row.num_disturbed} of {row.num_repeats} disturbed"] if row.num_disturbed else []
    return "; ".join(notes) or None


POP_COLUMNS = (
    PopFactor.PARALLEL,
    PopFactor.LOAD_BALANCE,
    PopFactor.LB_IN,
    PopFactor.LB_OUT,
    PopFactor.SERIALISATION,
    PopFactor.TRANSFER,
)


def _pop_table(schemes: SchemeStudy, word: str, suffix: str) -> Table | None:
    with_factors = [row for row in schemes.rows if row.efficiency is not None]
    if not with_factors:
        return None
    rows: list[tuple[Value, ...]] = [
        (
            visible(row.title, 80),
            *(row.efficiency.value(factor) if row.efficiency else None for factor in POP_COLUMNS),
        )
        for row in schemes.rows
    ]
    return Table(
        id=f"study-pop-table{suffix}",
        title="Where efficiency is lost",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            *(
                Column(
                    key=factor.value,
                    title=TITLES[factor],
                    unit=Unit.RATIO,
                    primary=factor not in SPLIT_BY_HOST,
                )
                for factor in POP_COLUMNS
            ),
        ),
        rows=tuple(rows),
        heat=tuple(("", *(efficiency_tone(value) for value in row[1:])) for row in rows),
        heat_mark=MARK,
        caption="Parallel efficiency = load balance × serialization × transfer. "
        f"{MARK} marks {units.format_ratio(ACCEPTABLE, 0)} and more, which counts as acceptable; "
        f"{units.MISSING} is not known, never 0.",
    ).trimmed()


def _turns(schemes: SchemeStudy, suffix: str) -> Iterator[Block]:
    """Those that would overtake the winner. Where none would, the verdict says so."""
    turning = [turn for turn in schemes.turns if turn.bandwidth_factor is not None]
    if turning:
        yield _turns_table(turning, suffix)
        without_crossing = [turn.challenger for turn in schemes.turns if turn.bandwidth_factor is None]
        if without_crossing:
            yield Note(text=f"No crossover within the model: {listed(without_crossing, 12)}.")
    if schemes.batch_turns:
        yield _batch_turns_table(schemes, suffix)


def _turns_table(turning: list[Turn], suffix: str) -> Table:
    return Table(
        id=f"study-turns-table{suffix}",
        terminal_form="sentences",
        title="Crossover with bandwidth",
        columns=(
            Column(key="challenger", title="Challenger", primary=True),
            Column(key="link", title="Link"),
            Column(key="factor", title="Its bandwidth × now", unit=Unit.FACTOR, modeled=True, primary=True),
            Column(key="rate", title="Bandwidth there", unit=Unit.RATE, modeled=True),
            Column(
                key="step",
                title="Step time of both at the crossover",
                unit=Unit.TIME,
                modeled=True,
                primary=True,
            ),
            Column(key="sentence", title="In words"),
        ),
        rows=tuple(
            (
                visible(turn.challenger, 80),
                WHERE.get(turn.link_class, visible(turn.link_class)),
                turn.bandwidth_factor,
                turn.bandwidth_bytes_per_s,
                turn.step_ns,
                visible(turn.sentence or turn.reason, LONGEST),
            )
            for turn in turning
        ),
        caption="As modeled: exposed communication goes as 1 over the bandwidth, nothing else changes.",
        cards=True,
    ).trimmed()


def _batch_turns_table(schemes: SchemeStudy, suffix: str) -> Table:
    return Table(
        id=f"study-turns-table-batch{suffix}",
        terminal_form="sentences",
        title="Crossover with batch size",
        columns=(
            Column(key="challenger", title="Challenger", primary=True),
            Column(key="batch", title="Samples per step", unit=Unit.COUNT, modeled=True, primary=True),
            Column(key="factor", title="Times now", unit=Unit.FACTOR, modeled=True),
            Column(
                key="step",
                title="Step time of both at the crossover",
                unit=Unit.TIME,
                modeled=True,
                primary=True,
            ),
            Column(key="sentence", title="In words"),
        ),
        rows=tuple(
            (
                visible(turn.challenger, 80),
                turn.batch,
                turn.batch_factor,
                turn.step_ns,
                visible(turn.sentence, LONGEST),
            )
            for turn in schemes.batch_turns
        ),
        caption="As modeled: compute and activations grow with the batch, weights do not.",
        cards=True,
    ).trimmed()


def _matrix(schemes: SchemeStudy, word: str, suffix: str) -> Table | None:
    titles = [row.title for row in schemes.rows if row.samples_per_s]
    if len(titles) < 3 or not schemes.pairs:  # of two the speeds' table says it all
        return None
    titles_shown = titles[:MOST_PAIRED]
    ratios = {(pair.a, pair.b): (pair.ratio, pair.level) for pair in schemes.pairs}
    ratios |= {(p.b, p.a): (1 / p.ratio, p.level) for p in schemes.pairs if p.ratio > 0}
    rows: list[tuple[Value, ...]] = []
    heat: list[tuple[str, ...]] = []
    for number, row in enumerate(titles_shown, 1):
        cells = [ratios.get((row, column)) for column in titles_shown]
        rows.append((f"{number}  {visible(row, 60)}", *(cell[0] if cell else None for cell in cells)))
        heat.append(("", *("" if cell is None or cell[1] else ratio_tone(cell[0]) for cell in cells)))
    sure = any(pair.level is not None for pair in schemes.pairs)
    caption = "Samples/s of the row over those of the numbered column; blue: the row is faster. " + (
        "Cells without color: the repeats do not distinguish the two."
        if sure
        else "Without repeats there is no interval: small differences may be noise."
    )
    left = len(titles) - len(titles_shown)
    return Table(
        id=f"study-matrix{suffix}",
        title=f"Pairwise comparison of {word}s",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            *(
                Column(
                    key=f"c{number}",
                    title=str(number),
                    unit=Unit.FACTOR,
                    hint=visible(title, 80),
                    primary=True,
                )
                for number, title in enumerate(titles_shown, 1)
            ),
        ),
        rows=tuple(rows),
        heat=tuple(heat),
        caption=f"{caption} The {left} slowest are left to the JSON." if left > 0 else caption,
    )


def _pairs_table(schemes: SchemeStudy, suffix: str) -> Table | None:
    with_interval = [pair for pair in schemes.pairs if pair.interval is not None]
    if not with_interval:
        return None
    return Table(
        id=f"study-pairs-table{suffix}",
        title="Pairs with their intervals",
        columns=(
            Column(key="a", title="This", primary=True),
            Column(key="b", title="over that", primary=True),
            Column(key="ratio", title="Ratio of samples/s", unit=Unit.FACTOR, primary=True),
            Column(key="interval", title="95 % interval", primary=True),
            Column(key="p", title="p", unit=Unit.LOSS, hint="permutation test over runs"),
            Column(key="level", title="Distinguished", primary=True),
        ),
        rows=tuple(
            (
                visible(pair.a, 80),
                visible(pair.b, 80),
                pair.ratio,
                interval_text(Unit.FACTOR, pair.interval),
                pair.p_value,
                "no" if pair.level else "yes",
            )
            for pair in with_interval
        ),
        print_rows=30,
    )
