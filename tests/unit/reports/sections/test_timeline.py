"""Names of spans in the timeline."""

from __future__ import annotations

import pytest

from perfscope.reports.sections.timeline import span_title


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("perfscope.step:3", "step 3"),
        ("perfscope.layer:features.3", "features.3"),
        ("perfscope.phase:rollout", "rollout"),
        ("perfscope.wait", "wait"),
        ("perfscope.serves:dp?conv1=4704&fc=1024", "communication of conv1, fc along dp, 5.59 KiB"),
        ("perfscope.serves:a=1&b=1&c=1&d=1", "communication of a, b, c and 1 more"),  # by the probe: no sizes
        ("perfscope.serves:dp?", "communication along dp"),
        ("perfscope.boundary:0 1 2", "stage 0 to 1, microbatch 2"),
        ("perfscope.boundary:?", "?"),
        ("perfscope.group:0:peer=3", "group 0, peer 3"),
        ("perfscope.group:tp", "group tp"),
        ("perfscope.rows:128", "exchange of 128 rows"),
        ("perfscope.source:1", "receive from rank 1 of the group"),
        ("aten::mm", "aten::mm"),
        ("model?x=1", "model?x=1"),
    ],
)
def test_marks_have_names_that_a_person_reads(name: str, title: str) -> None:
    assert span_title(name) == title
