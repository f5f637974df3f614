"""Marks of pipeline stages: what is marked, and that nothing of them stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perfscope.probes.torch.stages import METHODS, StageMarks
from perfscope.probes.torch.wrapped_calls import WrappedCalls

pytest.importorskip("torch")
stage_module = pytest.importorskip("torch.distributed.pipelining.stage")
pytestmark = pytest.mark.torch
BASE = stage_module._PipelineStageBase


class Stage(BASE):  # type: ignore[misc, valid-type]
    """The base's methods, on a stage that computes nothing."""

    def __init__(self) -> None:
        self.stage_index = 2

    _create_grad_recv_info = _get_init_p2p_neighbors_ops = None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """What reaches the methods under the marks."""
    seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def recording(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> str:
            if kwargs.get("loss") == "bad":
                raise KeyError(name)
            seen.append((name, args, kwargs))
            return name

        return call

    for name in METHODS:
        monkeypatch.setattr(BASE, name, recording(name))
    Stage.__abstractmethods__ = frozenset()
    return seen


class Marks:
    def __init__(self, *, broken: bool = False) -> None:
        self.seen: list[str] = []
        self.open = 0
        self.faults: list[Exception] = []
        self._broken = broken
        self.stages = StageMarks(WrappedCalls(self._new, lambda: False, self.faults.append))

    @contextmanager
    def _new(self, text: str) -> Iterator[None]:
        if self._broken:
            raise ValueError("no mark to be had")
        self.seen.append(text)
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


def work(stage: Any) -> None:
    stage.forward_one_chunk(0, ("x",), {})
    stage.forward_one_chunk(fwd_chunk_id=1, args=("x",))
    stage.backward_one_chunk(0, loss=None, full_backward=True, last_backward=False)
    stage.backward_one_chunk(bwd_chunk_id=1)
    stage.backward_one_chunk(2, None, False)
    stage.backward_weight_one_chunk(2, last_backward=True)


def test_each_work_is_written_as_torch_writes_it(calls: list[Any]) -> None:
    marks, stage = Marks(), Stage()
    work(stage)
    without = list(calls)
    calls.clear()
    marks.stages.install()
    marks.stages.install()
    work(stage)
    marks.stages.remove()
    assert marks.seen == [f"perfscope.stage:2{text}" for text in ("F0", "F1", "B0", "B1", "I2", "W2")]
    assert calls == without
    work(stage)
    assert len(marks.seen) == 6 and marks.open == 0 and marks.faults == []


def test_the_class_is_afterwards_what_it_was(calls: list[Any]) -> None:
    before = {name: vars(BASE)[name] for name in METHODS}
    marks = Marks()
    marks.stages.install()
    replaced = lambda *args, **kwargs: None  # noqa: E731 - other code's replacement
    BASE.forward_one_chunk = replaced
    marks.stages.remove()
    assert vars(BASE)["forward_one_chunk"] is replaced
    assert all(vars(BASE)[name] is before[name] for name in list(METHODS)[1:])


def test_errors_of_the_stage_pass_and_errors_of_the_marks_do_not(calls: list[Any]) -> None:
    marks, stage = Marks(), Stage()
    marks.stages.install()
    with pytest.raises(KeyError):
        stage.backward_one_chunk(0, loss="bad")
    marks.stages.remove()
    assert marks.open == 0
    broken = Marks(broken=True)
    broken.stages.install()
    work(stage)
    broken.stages.remove()
    assert len(calls) == 6 and len(broken.faults) == 1
