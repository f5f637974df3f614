"""What every chart of the model derives from, so that a renderer asks once whether a block is drawn."""

from __future__ import annotations


class Chart:
    """A block that `drawing.lay_out` turns into a Picture."""

    __slots__ = ()

    id: str
    title: str
