"""The step with equal pipeline stages, with the schedule's own bubble, or with equal loads of experts.

These come from the works of stages and experts themselves (`pipeline.bubble`, `experts.analyze`) and need no
matched calls: the step is shortened by as much as a pipeline's active time, or the pairs of all-to-all calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.experts.results import Experts
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.results import Breakdown
from perfscope.analysis.whatif.analyze import ALIKE, WhatIfs
from perfscope.analysis.whatif.results import WhatIf
from perfscope.messages import whatif as texts

EQUAL_STAGES, IDEAL_BUBBLE, EQUAL_EXPERTS = "equal_stages", "ideal_bubble", "equal_experts"
_Question = tuple[str, texts.WhatIfText, int, int | None]  # slug, text, saved ns, rank


def with_parallel(
    what_ifs: WhatIfs,
    parallel: tuple[Pipeline | None, Experts | None],
    breakdowns: Sequence[Breakdown | None],
    usual_ns: float | None,
) -> WhatIfs:
    """The what-ifs with those of pipelines and experts.

    Args:
        what_ifs: of the run.
        parallel: its pipelines and experts; None: it has none.
        breakdowns: of the ranks' mean traced steps.
        usual_ns: the usual (untraced) step; None: the traced one.
    """
    traced = [breakdown.step for breakdown in breakdowns if breakdown is not None]
    pipeline, experts = parallel
    questions = [*_of_pipeline(pipeline), *_of_experts(experts)]
    if not questions or not traced:
        return what_ifs
    traced_ns = sum(traced) / len(traced)
    stretched = traced_ns / (usual_ns or traced_ns)
    caution = ""
    if not 1 / ALIKE <= stretched <= ALIKE:  # that of the replay where it has one: it says the same
        cautions = (what_if.caution for what_if in what_ifs.what_ifs if what_if.caution)
        caution = next(cautions, texts.caution(None, stretched, None))
    added = [_what_if(question, traced_ns, stretched, caution) for question in questions]
    gains = [what_if for what_if in (*what_ifs.what_ifs, *added) if what_if.gain_ns > 0]
    return replace(what_ifs, what_ifs=tuple(sorted(gains, key=lambda what_if: -what_if.gain_ns)))


def _of_pipeline(pipeline: Pipeline | None) -> list[_Question]:
    if pipeline is None or not pipeline.balanced_ns:
        return []
    slowest = max(pipeline.stages, key=lambda stage: stage.compute_ns)
    bubble = pipeline.bubble
    least = 1 - (pipeline.active_ns - bubble.measured_ns) / pipeline.balanced_ns
    return [
        (
            EQUAL_STAGES,
            texts.equal_stages(slowest.stage, slowest.relative),
            pipeline.active_ns - pipeline.equal_stages_ns,
            slowest.ranks[0],
        ),
        (
            IDEAL_BUBBLE,
            texts.ideal_bubble(bubble.measured_ratio, max(least, 0.0)),
            pipeline.active_ns - pipeline.balanced_ns,
            None,
        ),
    ]


def _of_experts(experts: Experts | None) -> list[_Question]:
    if experts is None or not experts.layers:
        return []
    worst = experts.layers[0]
    most = max(worst.ranks, key=lambda rank: rank.bytes).rank
    text = texts.equal_experts(most, worst.layer, worst.imbalance)
    return [(EQUAL_EXPERTS, text, experts.saved_ns, most)]


def _what_if(question: _Question, traced_ns: float, stretched: float, caution: str) -> WhatIf:
    slug, text, saved_ns, rank = question
    usual = round(traced_ns / stretched)
    predicted = round((traced_ns - max(saved_ns, 0)) / stretched)
    return WhatIf(
        id=slug,
        title=text.title,
        step_ns=predicted,
        gain_ns=usual - predicted,
        gain_ratio=(usual - predicted) / usual,
        evidence=text.evidence,
        caution=caution,
        rank=rank,
    )
