"""Python's object stream, as far as plain data goes: a reader that cannot run code.

Only opcodes that make None, booleans, numbers, texts, bytes, lists, tuples and dicts are known. There is no
way to name a class or a function, to call one, or to set an attribute; a file that tries is refused. Unlike
with the standard library's reader, a stored index or length never reserves memory: everything that is built
is in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_MARK = object()
_STOP = ord(".")
_KEYS = (str, bytes, int, float, bool, type(None))
# Opcodes that name classes, call functions, or fill objects (pickletools): refused with their own words.
_CODE = frozenset(b"ciobR\x81\x92\x93PQ\x82\x83\x84")


class StreamError(ValueError):
    """No such stream, a damaged one, or one that holds more than plain data."""


def plain_data(data: bytes) -> Any:
    """The one value of the stream; containers may occur at several places, and inside themselves.

    Raises:
        StreamError: it cannot be read, or asks for code to be run.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        if isinstance(error, StreamError):
            raise
        raise StreamError(f"damaged at byte {machine.at:,}") from None


class _Machine:
    """A stack machine over `data`; `at` is where it reads."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, actions = self.data, _ACTIONS
        while True:
            if self.at >= len(data):
                raise StreamError("it ends early")
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                break
            action = actions.get(code)
            if action is None:
                what = "asks for code to be run" if code in _CODE else f"unknown opcode 0x{code:02x}"
                raise StreamError(f"{what}, at byte {self.at - 1:,}")
            action(self)
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise StreamError("it does not end with one value")
        return self.stack[0]

    def take(self, length: int) -> bytes:
        if length < 0 or self.at + length > len(self.data):
            raise StreamError("it ends early")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise StreamError(f"damaged at byte {self.at:,}")
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def pop(self) -> Any:
        item = self.stack.pop()
        if item is _MARK:
            raise StreamError(f"damaged at byte {self.at:,}")
        return item

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise StreamError(f"damaged at byte {self.at:,}")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict or len(items) % 2:
            raise StreamError(f"damaged at byte {self.at:,}")
        # A tuple as a key is hashed by C code, to any depth and, where it is shared, any number of times.
        if any(type(key) not in _KEYS for key in items[::2]):
            raise StreamError(f"a key that is no plain value, at byte {self.at:,}")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def remember(self, index: int) -> None:
        if self.stack[-1] is _MARK:
            raise StreamError(f"damaged at byte {self.at:,}")
        self.memo[index] = self.stack[-1]


_Action = Callable[[_Machine], object]


def _pushed(value: object) -> _Action:
    return lambda machine: machine.stack.append(value)


def _number(form: str) -> _Action:
    return lambda machine: machine.stack.append(machine.number(form))


def _text(form: str) -> _Action:
    return lambda machine: machine.stack.append(machine.take(machine.number(form)).decode("utf-8", "replace"))


def _bytes(form: str) -> _Action:
    return lambda machine: machine.stack.append(machine.take(machine.number(form)))


def _long(form: str) -> _Action:
    def action(machine: _Machine) -> None:
        machine.stack.append(int.from_bytes(machine.take(machine.number(form)), "little", signed=True))

    return action


def _tuple(size: int) -> _Action:
    def action(machine: _Machine) -> None:
        machine.stack.append(tuple([machine.pop() for _ in range(size)][::-1]))

    return action


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.update([key, value])


_ACTIONS: dict[int, _Action] = {
    0x80: lambda machine: machine.take(1),  # protocol
    0x95: lambda machine: machine.take(8),  # frame
    ord("("): _pushed(_MARK),
    ord("N"): _pushed(None),
    0x88: _pushed(True),
    0x89: _pushed(False),
    ord("K"): _number("<B"),
    ord("M"): _number("<H"),
    ord("J"): _number("<i"),
    ord("G"): _number(">d"),
    0x8A: _long("<B"),
    0x8B: _long("<I"),
    0x8C: _text("<B"),
    ord("X"): _text("<I"),
    0x8D: _text("<Q"),
    ord("C"): _bytes("<B"),
    ord("B"): _bytes("<I"),
    0x8E: _bytes("<Q"),
    ord("]"): lambda machine: machine.stack.append([]),
    ord("}"): lambda machine: machine.stack.append({}),
    ord(")"): _pushed(()),
    ord("t"): lambda machine: machine.stack.append(tuple(machine.marked())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("l"): lambda machine: machine.stack.append(machine.marked()),
    ord("a"): lambda machine: machine.extend([machine.pop()]),
    ord("e"): lambda machine: machine.extend(machine.marked()),
    ord("s"): _set_item,
    ord("u"): lambda machine: machine.update(machine.marked()),
    ord("q"): lambda machine: machine.remember(machine.number("<B")),
    ord("r"): lambda machine: machine.remember(machine.number("<I")),
    0x94: lambda machine: machine.remember(len(machine.memo)),
    ord("h"): lambda machine: machine.stack.append(machine.memo[machine.number("<B")]),
    ord("j"): lambda machine: machine.stack.append(machine.memo[machine.number("<I")]),
}
