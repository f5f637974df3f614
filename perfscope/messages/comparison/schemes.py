"""Settings side by side: which wins, by how much, why, and where the order would turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from perfscope.messages.study import faster_than, named, on_part, percent, times
from perfscope.units import MISSING, format_bytes, format_ns, format_rate, three_digits
from perfscope.vocabulary.comparison import NotModeled

OTHER_BATCHES = "Crossover with bandwidth is not modeled: the settings have other batches."
NOTHING_SHARED = (
    "no two settings share model, data, data type, batch, machine and number of ranks: no ratio is "
    "formed and no winner is named"
)
NOT_ALIKE = "but not with the same work per update"
ONE_RUN_EACH = "no repeats, noise unknown"
ONE_REPEAT = "one run of each is no measure of the noise: an interval needs two repeats or more"
_NOT_MODELED = {
    NotModeled.ONE_HOST: "all its ranks are on one host: no link between hosts whose bandwidth could change",
    NotModeled.NO_BATCH_TIME: "its time per batch is not known",
    NotModeled.NO_TRACED_STEP: "none of its steps was traced: how much of its communication is exposed is "
    "not known",
}


def one_setting(title: str) -> str:
    """All usable runs are repeats of one setting."""
    return f"all usable runs are of one setting ({title}): nothing to compare it with"


def unequal_work(sizes: Collection[int], synchronies: Collection[str]) -> str:
    """What to say of updates of so many samples, made so; "" where all are alike.

    Args:
        sizes: samples in an update, of each run that knows it.
        synchronies: of the schemes: synchronous, bounded, asynchronous, none; "" = not a scheme.
    """
    kinds = sorted({*synchronies} - {"", "none"})
    reasons = []
    if len({*sizes}) > 1:
        reasons.append(f"One update averages {min(sizes):,} to {max(sizes):,} samples")
    if len(kinds) > 1:
        what = "updates" if reasons else "Updates"
        reasons.append(f"{what} are {' or '.join(kinds)}")
    return f"{', and '.join(reasons)}: samples/s do not compare learning." if reasons else ""


def noise_of(ratio: float, low: float, high: float, num_repeats: int, *, is_wide: bool) -> str:
    """The 95 % interval of the ratio; `is_wide`: it says nothing."""
    if is_wide:
        return f"the {num_repeats} repeats or more of each lie too far apart to say more"
    return f"ratio {ratio:.2f}, 95 % interval {low:.2f} to {high:.2f}, {num_repeats} repeats or more of each"


def headline(
    winner: str,
    second: str,
    speeds: tuple[float | None, float | None],
    *,
    ratio: float,
    is_level: bool,
    is_doubtful: bool,
    noise: str,
    unequal: str,
) -> str:
    """Which wins, by how much; speeds in samples/s.

    `is_doubtful`: what was measured says nothing of which is faster.
    """
    first, then = (MISSING if speed is None else three_digits(speed) for speed in speeds)
    both = f"{first} against {then} samples/s"
    if is_level:
        text = f"{winner} and {second} are level: {both} ({noise})."
    else:
        # Who processes most has not won where an update is of other samples: it may learn less of each.
        verb = "processed the most samples" if is_doubtful else "wins"
        if unequal:
            verb = f"processes the most samples, {NOT_ALIKE}"
        text = f"{winner} {verb}: {both}, {faster_than(ratio)} {second} ({noise})."
    return f"{text} {unequal}" if unequal else text


def by_samples(headline: str) -> str:
    """What the speeds alone say, behind a ranking by learning."""
    return f"By samples/s alone: {headline}"


def slowest(last: str, winner: str, ratio: float) -> str:
    """`ratio`: of the winner's speed to the slowest's."""
    return f"The slowest, {last}, takes {times(ratio)} as long as {winner}."


def advice(winner: str, pair: tuple[str, str], *, is_level: bool, is_close: bool, is_unequal: bool) -> str:
    """What to choose.

    `is_close`: one run each, of about the same speed. `is_unequal`: updates of unequal numbers of samples.
    """
    if is_level:
        return f"Use {pair[0]} or {pair[1]}: these repeats do not tell them apart."
    if is_close:
        return f"Repeat {pair[0]} and {pair[1]} three times each before choosing: they are close."
    if is_unequal:
        return f"Compare losses after equally many samples before choosing {winner}."
    return f"Use {winner}."


def advised(label: str, action: str) -> str:
    """The action of a run's own report."""
    return f"What the report of {label} advises: {action}"


def not_traced(titles: Sequence[str]) -> str:
    return f"Why is not known: no step of {named(titles)} was traced."


def no_part(winner: str, other: str) -> str:
    return f"In the traced steps no part tells {winner} from {other}."


def part_saved(
    winner: str,
    other: str,
    part: str,
    times_ns: tuple[float, float],
    *,
    per_sample: bool,
    paid: tuple[str, float] | None,
) -> str:
    """The part in which the winner saves most, with both times; `paid`: the part that costs it more."""
    unit = " per sample" if per_sample else ""
    text = (
        f"Of a traced step {winner} spends {format_ns(times_ns[0])}{unit} on "
        f"{on_part(part)}, {other} {format_ns(times_ns[1])}"
    )
    if paid is not None:
        text += f"; at the cost of {format_ns(paid[1])} more on {on_part(paid[0])}"
    return f"{text}."


def same_bytes(size: float, link_class: str) -> str:
    return f"Both send {format_bytes(size)} a step over {link_class}."


def sent_bytes(winner: str, other: str, link_class: str, sizes: tuple[float, float]) -> str:
    """Bytes of a step over one class of links."""
    return (
        f"{winner} sends {format_bytes(sizes[0])} a step over {link_class}, {other} {format_bytes(sizes[1])}."
    )


def slowest_sends(last: str, size: float, ratio: float | None) -> str:
    """`ratio` to the winner's bytes, where the slowest sends more."""
    more = f" ({times(ratio)} as much)" if ratio is not None else ""
    return f"The slowest, {last}, sends {format_bytes(size)}{more}."


def turn_not_known(title: str, why: NotModeled) -> str:
    return f"Crossover with bandwidth is not known: {title}: {_NOT_MODELED[why]}."


def no_turn(winner: str, farthest: float) -> str:
    return (
        f"No other setting would overtake {winner} on links up to {farthest:.0f} times slower or "
        "faster (modeled: exposed communication changes with bandwidth, nothing else does)."
    )


def stays_behind(other: str, winner: str, farthest: float) -> str:
    return (
        f"{other} stays behind {winner} from {farthest:.0f} times slower to "
        f"{farthest:.0f} times faster links (modeled)"
    )


def overtakes(
    other: str,
    winner: str,
    link_class: str,
    factor: float,
    *,
    bytes_per_s: float | None,
    batch_ns: float,
    from_bytes: bool,
) -> str:
    """At `factor` times the bandwidth; `from_bytes`: modeled from known bytes of both."""
    how = f"{times(factor)} as fast" if factor > 1 else f"{times(1 / factor)} as slow"
    rate = f" ({format_rate(bytes_per_s)} per host)" if bytes_per_s else ""
    basis = "the bytes each sends" if from_bytes else "all exposed communication going as 1 / bandwidth"
    return (
        f"{other} would overtake {winner} with {link_class} {how} as here{rate}, where both need "
        f"{format_ns(batch_ns)} for a batch; modeled from {basis}."
    )


def overtakes_at_batch(other: str, winner: str, samples: int, now: int) -> str:
    return (
        f"With about {samples:,} samples per step in place of {now:,}, {other} would overtake "
        f"{winner}: activations and compute grow with the batch, weights do not (modeled)."
    )


def learned_less(winner: str, loss: float, best: str, best_loss: float) -> str:
    return (
        f"{winner} ends at held-out loss {loss:.3f}, {best} at {best_loss:.3f}: the faster one has learned "
        "less."
    )


def diverged(titles: Sequence[str]) -> str:
    return f"{named(titles)} diverged."


def disturbed(share: float, titles: Sequence[str]) -> str:
    return f"{percent(share)} of the runs were disturbed ({named(titles)})."


def exchanges_not_seen(rows: Sequence[tuple[str, float]]) -> str:
    """Of rows with their idle share of the step: exchanges under way before the window are not in it."""
    shares = " and ".join(dict.fromkeys(percent(share) for _, share in sorted(rows, key=lambda row: row[1])))
    if len(rows) > 2:
        shares = f"{percent(min(share for _, share in rows))} or more"
    return (
        f"{named([title for title, _ in rows])}: exchanges that began before the traced window have no span "
        f"in it, so that waiting for them counts as idle ({shares} of the step), not as exposed "
        "communication: that share is too low, and the saving it seems to show is none."
    )


def report_verdict(where: str, title: str, *, is_first: bool) -> str:
    """ "At 4 ranks perfscope's verdict: 4 threads want 2 CPUs."; `is_first`: of the run's findings."""
    finds = "perfscope's verdict" if is_first else "perfscope finds, beside what disturbed the run"
    return f"{where} {finds}: {title}"
