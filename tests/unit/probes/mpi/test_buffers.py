"""Bytes and types of mpi4py's buffer arguments, every form that mpi4py.typing lists; no MPI needed."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from perfscope.probes.mpi.buffers import UNKNOWN, Buffers, Size

IN_PLACE = object()


class Datatype:
    """As much of mpi4py's class as is asked."""

    def __init__(self, name: str, size: int, extent: int | None = None) -> None:
        self._name, self._size, self._extent = name, size, extent or size

    def Get_name(self) -> str:
        return self._name

    def Get_size(self) -> int:
        return self._size

    def Get_extent(self) -> tuple[int, int]:
        return 0, self._extent


DOUBLE = Datatype("MPI_DOUBLE", 8)
INT = Datatype("MPI_INT", 4)
COLUMN = Datatype("", 80, 800)  # ten doubles, each in a row of ten
TEN = np.zeros(10)


@pytest.fixture
def buffers() -> Buffers:
    return Buffers(IN_PLACE, Datatype, {"d": DOUBLE, "i": INT})


@pytest.mark.parametrize(
    ("argument", "num_bytes", "dtype"),
    [
        (TEN, 80, "float64"),
        (np.zeros((3, 4), np.float32), 48, "float32"),
        (np.zeros((4, 4), np.int16)[:, 1].copy(), 8, "int16"),
        (bytearray(7), 7, "uint8"),
        (b"seven..", 7, "uint8"),
        (memoryview(bytearray(6)), 6, "uint8"),
        (array.array("f", [1, 2]), 8, "float32"),
        ([TEN, DOUBLE], 80, "float64"),
        ((TEN, "d"), 80, "float64"),
        ([TEN, 4], 32, "float64"),
        ([TEN, 4, DOUBLE], 32, "float64"),
        ([TEN, (4, 2), DOUBLE], 32, "float64"),
        ([TEN, (None, 2), DOUBLE], 64, "float64"),
        ([TEN, 4, 2, DOUBLE], 32, "float64"),
        ([bytearray(16), "i"], 16, "int32"),
        ([None, 3, INT], 12, "int32"),  # MPI.BOTTOM: the addresses are in the datatype
        ([np.zeros((10, 10)), 1, COLUMN], 80, None),
        ([np.zeros((10, 10)), COLUMN], 80, None),
    ],
)
def test_a_buffer_of_one_count(buffers: Buffers, argument: Any, num_bytes: int, dtype: str | None) -> None:
    assert buffers.simple(argument) == Size(num_bytes, dtype)


def test_a_count_that_is_given_is_of_each_ranks_part(buffers: Buffers) -> None:
    whole = np.zeros(12)
    assert buffers.simple(whole, 4).num_bytes == 96
    assert buffers.simple([whole, 3, DOUBLE], 4).num_bytes == 96


@pytest.mark.parametrize(
    ("argument", "num_bytes"),
    [
        (TEN, 80),
        ([TEN, [1, 2, 3]], 48),
        ([TEN, (1, 2, 3)], None),  # a pair of counts and displacements is two long
        ([TEN, ([1, 2, 3], [0, 1, 3])], 48),
        ([TEN, ([1, 2, 3], None), DOUBLE], 48),
        ([TEN, [1, 2, 3], [0, 1, 3], DOUBLE], 48),
        ([TEN, np.array([1, 2, 3]), "d"], 48),
        ([TEN, 2], 48),
        ([TEN, DOUBLE], 80),
    ],
)
def test_a_count_for_each_rank(buffers: Buffers, argument: Any, num_bytes: int | None) -> None:
    assert buffers.vector(argument, 3).num_bytes == num_bytes


def test_a_datatype_for_each_rank(buffers: Buffers) -> None:
    assert buffers.each([TEN, [DOUBLE, INT]], 2) == Size(12, None)
    assert buffers.each([TEN, ([2, 0], [0, 8]), [DOUBLE, DOUBLE]], 2) == Size(16, "float64")
    assert buffers.each([TEN, [2, 1], [0, 8], [DOUBLE, INT]], 2).num_bytes == 20


def test_what_cannot_be_read_is_unknown_and_not_zero(buffers: Buffers) -> None:
    for argument in (object(), [], [TEN], [TEN, "no such letter"], ["text", 3, 4, 5, 6]):
        assert buffers.simple(argument).num_bytes in (None, 80)
    assert buffers.simple(7) == UNKNOWN
    assert buffers.each([TEN], 2) == UNKNOWN


def test_in_place_is_none_or_the_constant(buffers: Buffers) -> None:
    assert buffers.is_in_place(None) and buffers.is_in_place(IN_PLACE)
    assert not buffers.is_in_place(TEN)


def test_pickled_objects_are_only_sized_where_that_is_certain(buffers: Buffers) -> None:
    assert buffers.object(b"four") == 4
    assert buffers.object("four") == 4
    assert buffers.object("vier größer") == 13
    assert buffers.object(TEN) == 80
    assert buffers.object({"a": 1}) is None
    assert buffers.object(3.0) is None
    assert buffers.object(None) is None
    assert buffers.objects([b"a", b"bc"]) == 3
    assert buffers.objects([b"a", 3]) is None
    assert buffers.objects(b"abc") is None
