"""Marks of process groups: what is called through them, and that nothing of them stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perfscope.probes.torch.groups import METHODS, GroupMarks, failed_without_groups, reducer_groups
from perfscope.probes.torch.trace import TorchTrace
from perfscope.probes.torch.wrapped_calls import WrappedCalls
from tests.probe.conftest import Train

torch = pytest.importorskip("torch")
dist = torch.distributed
pytestmark = pytest.mark.torch


@pytest.fixture
def world() -> Iterator[Any]:
    """A process group of one, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class Marks:
    """Writes down what is marked, and the faults."""

    def __init__(self, *, broken: bool = False, sees: Callable[[str], bool] = lambda device: True) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []
        self.faults: list[Exception] = []
        self._broken = broken
        self.groups = GroupMarks(
            WrappedCalls(self._new, lambda: False, failed_without_groups(self.faults.append)), sees
        )

    @contextmanager
    def _new(self, text: str) -> Iterator[None]:
        if self._broken:
            raise ValueError("no mark to be had")
        self.seen.append(text)
        self.open.append(text)
        try:
            yield
        finally:
            self.open.remove(text)


def entries() -> dict[str, Any]:
    return {name: vars(dist.ProcessGroup).get(name) for name in METHODS} | {
        name: vars(dist.Work).get(name) for name in ("_source_rank", "wait")
    }


def test_the_class_is_afterwards_what_it_was(world: Any) -> None:
    before, order = entries(), list(vars(dist.ProcessGroup))
    marks = Marks()
    for _ in range(2):
        marks.groups.install()
        marks.groups.install()  # a window in a window
        assert entries() != before
        marks.groups.remove()
        marks.groups.remove()
        assert all(entries()[name] is entry for name, entry in before.items())
    assert list(vars(dist.ProcessGroup)) == order
    assert marks.faults == []


def test_calls_are_marked_while_installed_only(world: Any) -> None:
    marks = Marks()
    x = torch.ones(3)
    dist.all_reduce(x)
    marks.groups.install()
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather([torch.zeros(3)], x)
    dist.barrier()
    marks.groups.remove()
    dist.all_reduce(x)
    assert marks.seen == [f"perfscope.group:{world.group_name}", "perfscope.wait"] * 4
    assert marks.open == []


def test_calls_of_threads_that_the_trace_does_not_record_are_counted(world: Any) -> None:
    main, asked = threading.get_ident(), []

    def sees(device: str) -> bool:
        asked.append(device)
        return threading.get_ident() == main

    marks, x = Marks(sees=sees), torch.ones(3)
    marks.groups.install()
    dist.all_reduce(x)

    def work() -> None:
        dist.all_reduce(x)
        dist.all_gather([torch.zeros(3)], x)
        dist.barrier()

    helper = threading.Thread(target=work)
    helper.start()
    helper.join()
    marks.groups.remove()
    assert marks.seen == [f"perfscope.group:{world.group_name}", "perfscope.wait"]
    assert dict(marks.groups.num_unseen) == {"allreduce": 1, "allgather": 1, "barrier": 1}
    assert set(asked) == {"cpu"}
    assert marks.faults == []


def test_a_session_sees_its_thread_and_all_threads_where_it_records_them(world: Any) -> None:
    trace, seen = TorchTrace(), []

    def ask() -> None:
        seen.append(trace.sees("cpu"))

    def in_thread(work: Callable[[], object]) -> None:
        helper = threading.Thread(target=work)
        helper.start()
        helper.join()

    assert trace.start()
    ask()
    in_thread(ask)
    trace.abandon()

    def record() -> None:
        trace.start()
        ask()
        in_thread(ask)
        trace.abandon()

    in_thread(record)
    assert seen == [True, False, True, True]


def test_an_exception_of_the_call_passes_through(world: Any) -> None:
    marks = Marks()
    marks.groups.install()
    with pytest.raises((RuntimeError, TypeError)) as with_marks:
        world.allreduce([torch.ones(2).to_sparse().to("meta")])
    marks.groups.remove()
    with pytest.raises(with_marks.type) as without:
        world.allreduce([torch.ones(2).to_sparse().to("meta")])
    assert str(with_marks.value) == str(without.value)
    assert marks.open == []
    assert marks.faults == []


def test_a_fault_of_ours_ends_the_marks_and_not_the_call(world: Any) -> None:
    before = entries()
    marks = Marks(broken=True)
    marks.groups.install()
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.all_reduce(x)
    assert x.tolist() == [1, 1, 1]
    assert [str(fault) for fault in marks.faults] == ["no mark to be had"]
    assert entries() == before
    marks.groups.install()
    assert entries() == before


def test_a_method_that_somebody_replaced_meanwhile_is_left_alone(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = Marks()
    original = vars(dist.ProcessGroup)["allreduce"]
    marks.groups.install()
    ours = dist.ProcessGroup.allreduce
    calls: list[Any] = []

    def theirs(group: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(group)
        return ours(group, *args, **kwargs)

    dist.ProcessGroup.allreduce = theirs
    try:
        marks.groups.remove()
        assert vars(dist.ProcessGroup)["allreduce"] is theirs
        dist.all_reduce(torch.ones(1))
    finally:
        dist.ProcessGroup.allreduce = original
    assert len(calls) == 1
    assert marks.seen == []


def test_without_a_process_group_nothing_is_touched() -> None:
    before = entries()
    marks = Marks()
    marks.groups.install()
    assert entries() == before


def test_groups_of_reducers_in_a_model(world: Any) -> None:
    ddp = torch.nn.parallel.DistributedDataParallel
    inner = dist.new_group([0])
    model = torch.nn.Sequential(ddp(torch.nn.Linear(2, 2), process_group=inner), ddp(torch.nn.Linear(2, 2)))
    assert sorted(reducer_groups([model])) == sorted([inner.group_name, world.group_name])
    assert reducer_groups([torch.nn.Linear(2, 2)]) == []


def test_a_training_is_marked_in_its_window_and_left_as_it_was(train: Train) -> None:
    recorded = train(
        """
        import torch, torch.distributed as dist
        entries = dict(vars(dist.ProcessGroup))
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        pair = dist.new_group([0, 1])
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        inside = 0
        for step in range(12):
            net(torch.ones(1, 2)).sum().backward()
            x = torch.ones(2)
            dist.all_reduce(x, group=pair)
            ops = [dist.P2POp(dist.isend, x, 1 - rank, pair)]
            works = dist.batch_isend_irecv(ops) if rank == 0 else [dist.irecv(x, 0, group=pair)]
            for work in works:
                work.wait()
            inside += dict(vars(dist.ProcessGroup)) != entries
            optimizer.step(); optimizer.zero_grad()
        assert inside == 3, inside
        assert dict(vars(dist.ProcessGroup)) == entries
        dist.destroy_process_group()
        """,
        nproc=2,
        windows=1,
        overhead=1,
    )
    assert recorded.marks("group", rank=0) == ["1", "1:peer=1"] * 3
    assert recorded.marks("group", rank=1) == ["1", "1:peer=0"] * 3
    assert recorded.errors() == []


def test_functional_collectives_are_marked_and_are_afterwards_what_they_were(world: Any) -> None:
    """Of DTensor and of compiled code: they reach the group in C++."""
    import torch.distributed._functional_collectives as functional

    operators = [torch.ops._c10d_functional.all_reduce, torch.ops._c10d_functional.all_reduce_.default]
    before = [vars(operator)["_op"] for operator in operators]
    marks, x = Marks(), torch.ones(4, 2)
    functional.wait_tensor(functional.all_reduce(x, "sum", world))
    marks.groups.install()
    name = f"perfscope.group:{world.group_name}"
    functional.wait_tensor(functional.all_reduce(x, "sum", world))
    functional.wait_tensor(torch.ops._c10d_functional.all_reduce_.default(x.clone(), "sum", world.group_name))
    functional.wait_tensor(functional.all_to_all_single(x, None, None, world))
    marks.groups.remove()
    functional.wait_tensor(functional.all_reduce(x, "sum", world))
    assert marks.faults == []
    assert marks.seen == [name, name, name, "perfscope.rows:4"]
    assert all(vars(operator)["_op"] is entry for operator, entry in zip(operators, before, strict=True))


def test_compiled_functional_collectives_are_marked_and_not_compiled_again(world: Any) -> None:
    import torch.distributed._functional_collectives as functional
    from torch._dynamo.utils import counters

    def double(x: Any) -> Any:
        return functional.all_reduce(x * 2, "sum", world) + 1

    torch._dynamo.reset()
    compiled, marks = torch.compile(double, backend="aot_eager"), Marks()
    compiled(torch.ones(3))
    num_graphs = counters["stats"]["unique_graphs"]
    marks.groups.install()
    assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    marks.groups.remove()
    compiled(torch.ones(3))
    assert marks.seen == [f"perfscope.group:{world.group_name}"]
    assert counters["stats"]["unique_graphs"] == num_graphs
    assert marks.faults == []
