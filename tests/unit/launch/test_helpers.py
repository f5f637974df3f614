"""Processes that a launcher starts beside the training ones are no ranks that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.launch.attachment import AttachedRank, without_helpers
from perfscope.rundir.records import RankRecord


def ranks(world_size: int, *backends: str) -> list[AttachedRank]:
    return [
        AttachedRank(
            rank=rank,
            directory=Path(f"ranks/{rank}"),
            record=RankRecord(world_size=world_size, backend=backend),
            running=False,
        )
        for rank, backend in enumerate(backends)
    ]


@pytest.mark.parametrize(
    ("attached", "expected", "answer"),
    [
        (ranks(2, "kvstore dist_sync", "kvstore dist_sync"), 4, 2),  # a server and a scheduler
        (ranks(3, "kvstore dist_async", "kvstore dist_async"), 5, 3),  # one worker did not attach
        (ranks(2, "gloo", "gloo"), 4, 4),
        (ranks(2, "kvstore dist_sync", "gloo"), 4, 4),
        (ranks(2, "kvstore dist_sync", "kvstore dist_sync"), None, None),
        ([], 4, 4),
    ],
)
def test_servers_and_the_scheduler_of_mxnet_are_not_waited_for(
    attached: list[AttachedRank], expected: int | None, answer: int | None
) -> None:
    assert without_helpers(attached, expected) == answer
