"""Which operator queued each span of a CPU backend.

gloo runs collectives on threads of its own. Their spans say neither in which layer nor in which phase a
call was made; the `c10d::` operator that queued it does, because it runs on the thread that trains. A
process group takes its queue in order. So, per kind, group and number of elements, operators and spans are
paired in order of start, and the pairing is right if no operator starts after its span.

A file may begin after some calls were queued, and end before some ran: then the first spans, or the last
operators, have no partner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

# Spans of two threads may be recorded that far out of order.
CLOCK_SLACK_NS = 50_000
Call = tuple[int, int]  # lane, start


class CallEvent(Struct, frozen=True):
    """A collective that was queued by an operator, or whose span started.

    Attributes:
        is_span: a span of the backend; else an operator.
        kind: canonical name.
        lane, start: of the operator or span.
        group: that the operator names; None where it does not, and for spans.
        num_spans: that an operator leads to; None = not known.
        elements: of the input; None = not known.
    """

    is_span: bool
    kind: str
    lane: int
    start: int
    group: str | None
    num_spans: int | None
    elements: int | None


def match_queued(kinds: Sequence[Sequence[CallEvent]], group_of_lane: Mapping[int, str]) -> dict[Call, Call]:
    """Pairs spans with the operators that queued them.

    Args:
        kinds: events that can be paired with each other, each in order of start.
        group_of_lane: of the backend's threads, where it is known.

    Returns:
        Span -> its operator. A span without a certain partner has no entry.
    """
    queued_by: dict[Call, Call] = {}
    for events in kinds:
        operators: dict[str | None, list[CallEvent]] = defaultdict(list)
        spans: dict[str | None, list[CallEvent]] = defaultdict(list)
        for event in events:
            if event.is_span:
                spans[group_of_lane.get(event.lane)].append(event)
            else:
                operators[event.group].append(event)
        if len(operators) == 1 and None in spans:  # all of one group, whichever it is
            (group,) = operators
            spans[group] = sorted((s for of in spans.values() for s in of), key=lambda span: span.start)
        for group, queue in operators.items():
            if all(operator.num_spans is not None for operator in queue):
                queued_by.update(_paired(queue, spans.get(group, [])))
    return queued_by


def _paired(operators: Sequence[CallEvent], spans: Sequence[CallEvent]) -> dict[Call, Call]:
    """Those of one group, kind and size: operator i with span i + d, d as small as possible."""
    queue = [operator for operator in operators for _ in range(operator.num_spans or 0)]
    first = max(0, len(spans) - len(queue))
    while first < len(spans):
        pairs = list(zip(queue, spans[first:], strict=False))
        if all(operator.start <= span.start + CLOCK_SLACK_NS for operator, span in pairs):
            return {(span.lane, span.start): (operator.lane, operator.start) for operator, span in pairs}
        first += 1
    return {}
