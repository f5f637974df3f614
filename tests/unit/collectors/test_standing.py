"""Where a thread stands, from its frames."""

from __future__ import annotations

from perfscope.collectors.stacks.standing import Standing, _Frame, standing_of

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/"


def test_the_call_is_the_one_that_the_program_makes() -> None:
    frames = [
        _Frame(name="wait", filename=TORCH + "distributed_c10d.py", line=1),
        _Frame(name="all_reduce", filename=TORCH + "distributed_c10d.py", line=2),
        _Frame(name="_exception_logger.<locals>.wrapper", filename=TORCH + "c10d_logger.py", line=3),
        _Frame(name="average", filename="/home/user/train.py", line=41),
        _Frame(name="main", filename="/home/user/train.py", line=9),
    ]
    assert standing_of(frames) == Standing(call="all_reduce", file="train.py", line=41, function="average")


def test_a_program_that_waits_for_something_else_names_its_line() -> None:
    frames = [
        _Frame(name="read", filename="/usr/lib/python3.11/socket.py", line=1),
        _Frame(name="load", filename="data.py", line=7),
    ]
    assert standing_of(frames) == Standing(file="data.py", line=7, function="load")
    assert standing_of([]) == Standing()
