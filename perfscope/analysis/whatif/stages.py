"""The step with equal pipeline stages, and with the bubble that the schedule has at best.

Both come from replays of the pipeline's own works (`pipeline.bubble`), which need no matched calls: what the
pipeline's active time is shortened by, the step is.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.results import Breakdown
from perfscope.analysis.whatif.analyze import ALIKE, WhatIfs
from perfscope.analysis.whatif.results import WhatIf
from perfscope.messages import whatif as texts

EQUAL_STAGES, IDEAL_BUBBLE = "equal_stages", "ideal_bubble"


def with_pipeline(
    what_ifs: WhatIfs,
    pipeline: Pipeline | None,
    breakdowns: Sequence[Breakdown | None],
    usual_ns: float | None,
) -> WhatIfs:
    """The what-ifs with those of the pipeline.

    Args:
        what_ifs: of the run.
        pipeline: of the run; None: it has none.
        breakdowns: of the ranks' mean traced steps.
        usual_ns: the usual (untraced) step; None: the traced one.
    """
    traced = [breakdown.step for breakdown in breakdowns if breakdown is not None]
    if pipeline is None or not traced:
        return what_ifs
    traced_ns = sum(traced) / len(traced)
    stretched = traced_ns / (usual_ns or traced_ns)
    slowest = max(pipeline.stages, key=lambda stage: stage.compute_ns)
    least_bubble = pipeline.bubble.fill_ns + pipeline.bubble.drain_ns
    questions = (
        (EQUAL_STAGES, texts.equal_stages(slowest.stage, slowest.relative), pipeline.equal_stages_ns),
        (
            IDEAL_BUBBLE,
            texts.ideal_bubble(pipeline.bubble.measured_ratio, least_bubble / pipeline.balanced_ns),
            pipeline.balanced_ns,
        ),
    )
    added = []
    for slug, text, active_ns in questions:
        step_ns = traced_ns - max(pipeline.active_ns - active_ns, 0)
        added.append(_what_if(slug, text, step_ns, traced_ns, stretched))
    gains = [what_if for what_if in (*what_ifs.what_ifs, *added) if what_if.gain_ns > 0]
    return replace(what_ifs, what_ifs=tuple(sorted(gains, key=lambda what_if: -what_if.gain_ns)))


def _what_if(slug: str, text: texts.WhatIfText, step_ns: float, traced_ns: float, stretched: float) -> WhatIf:
    usual, predicted = round(traced_ns / stretched), round(step_ns / stretched)
    is_alike = 1 / ALIKE <= stretched <= ALIKE
    return WhatIf(
        id=slug,
        title=text.title,
        step_ns=predicted,
        gain_ns=usual - predicted,
        gain_ratio=(usual - predicted) / usual,
        evidence=text.evidence,
        caution=texts.caution(None, None if is_alike else stretched, None),
    )
