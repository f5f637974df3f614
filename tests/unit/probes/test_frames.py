"""What perfscope puts in the place of the training's functions is seen in no traceback and no warning."""

from __future__ import annotations

import ast
import inspect
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perfscope
from perfscope.probes.frames import around, hidden, hide_frames

PROBES = Path(perfscope.__file__).parent / "probes"


def functions_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def failing(value: int, *, key: str = "") -> None:
    """The training's own function."""
    dict[str, int]()[key]


def shown(call: Any, *args: Any) -> list[str]:
    try:
        call(*args)
    except (KeyError, TypeError) as error:
        return functions_of(error)
    raise AssertionError("it did not raise")


def test_a_wrapped_function_looks_and_fails_like_the_original() -> None:
    @around(failing)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return failing(*args, **kwargs)
        finally:
            call.calls += 1

    call.calls = 0
    assert shown(call, 1) == shown(failing, 1) == ["shown", "failing"]
    assert shown(call) == shown(failing) == ["shown"]  # the arguments are wrong
    assert call.calls == 2
    assert (call.__name__, call.__doc__) == ("failing", failing.__doc__)
    assert inspect.signature(call) == inspect.signature(failing)


def test_frames_between_those_of_the_training_are_taken_out_too() -> None:
    def user(then: Any) -> Any:
        return then()

    @hidden
    def inner() -> Any:
        return user(lambda: failing(1))

    @hidden
    def outer() -> Any:
        return user(inner)

    assert shown(outer) == ["shown", "user", "user", "<lambda>", "failing"]


def test_a_generator_of_ours_is_not_shown() -> None:
    namespace: dict[str, Any] = {"failing": failing, "hide_frames": hide_frames}
    source = """
def batches():
    try:
        yield 1
        failing(1)
    except BaseException as error:
        hide_frames(error)
        raise
"""
    exec(compile(source, str(PROBES / "example.py"), "exec"), namespace)
    found: Iterator[int] = namespace["batches"]()
    assert shown(list, found) == ["shown", "failing"]


def test_warnings_name_the_line_of_the_training() -> None:
    def deprecated() -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=2)

    @hidden
    def wrapped() -> None:
        deprecated()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped()
    assert [warning.filename for warning in caught] == [__file__]


def test_no_probe_replaces_a_function_by_other_means() -> None:
    """functools.wraps in a probe is how a wrapper that shows its frame would come back."""
    uses = [
        str(path.relative_to(PROBES))
        for path in sorted(PROBES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "wraps"
    ]
    assert uses == ["frames.py"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration])
def test_what_is_no_error_passes_as_well(error: type[BaseException]) -> None:
    def raising() -> None:
        raise error

    with pytest.raises(error) as caught:
        hidden(raising)()
    assert "call" not in functions_of(caught.value)
