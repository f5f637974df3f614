"""Codes for what earlier versions of perfscope recorded in words only. New records have the codes."""

from __future__ import annotations

from itertools import zip_longest

from perfscope.rundir.records import RankRecord
from perfscope.vocabulary.ceilings import CEILING_TITLES, CeilingKind
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.notes import NO_COUNTERS_OF_HOST, NoteKind
from perfscope.vocabulary.traffic import ScalesWith

# What a scheme's calls carry, by parts of `what`; those of samples are asked first.
_TRAFFIC = {
    ScalesWith.SAMPLES: ("activation", "input of", "logits", "output", "halo"),
    ScalesWith.WEIGHTS: ("gradients", "bucket", "weights", "centre", "parameters"),
}
# Entries of rank.json's `missing`, by `what`.
_FIGURES = {
    "windows (layers, phases)": Figure.WINDOWS,
    "windows (layers, phases, collectives in time)": Figure.WINDOWS,
    "step breakdown, layers and collectives": Figure.WINDOWS,
    "layers": Figure.LAYERS,
    "layers, forward and backward": Figure.LAYERS_AND_PHASES,
    "layers of part of the operators": Figure.LAYERS_OF_OPERATORS,
}
# Notes, by how they begin.
_NOTES = {
    "steps are cut": NoteKind.STEPS,
    NO_COUNTERS_OF_HOST: NoteKind.NO_COUNTERS,
    "no step marks": NoteKind.NO_STEP_MARKS,
}


def scales_with(code: object, what: object) -> ScalesWith | None:
    """Of a call in a scheme's record; None: not known.

    Args:
        code: its `scales_with`, where it has one.
        what: what it carries, in words.
    """
    try:
        return ScalesWith(code)
    except ValueError:
        parts = ((scaling, part) for scaling, fragments in _TRAFFIC.items() for part in fragments)
        return next((scaling for scaling, part in parts if part in str(what)), None)


def ceiling_kind(code: object, what: str) -> CeilingKind | None:
    """Of a peak that was not measured; None: of no single kind.

    Args:
        code: its `kind`, where it has one.
        what: the peak in words: ``STREAM triad, node 0``.
    """
    try:
        return CeilingKind(code)
    except ValueError:
        return next((kind for kind, title in CEILING_TITLES.items() if what.startswith(title)), None)


def missing_figure_of(code: object, what: str) -> Figure:
    """Of an entry of rank.json's `missing`.

    Args:
        code: its `figure`, where it has one.
        what: the figure in the probe's words.
    """
    try:
        return Figure(code)
    except ValueError:  # of an older perfscope, or a newer one
        return _FIGURES.get(what, Figure.OTHER)


def note_kind(code: object, text: str) -> NoteKind:
    """Of a note in rank.json or in a window's summary.

    Args:
        code: its kind, where it has one.
        text: the note.
    """
    try:
        return NoteKind(code)
    except ValueError:
        usual = NoteKind.WINDOW if "window" in text else NoteKind.OTHER
        return next((kind for begin, kind in _NOTES.items() if text.startswith(begin)), usual)


def notes_of(record: RankRecord) -> list[tuple[NoteKind, str]]:
    """The notes of rank.json, with their kinds."""
    codes = record.note_kinds[: len(record.notes)]
    return [(note_kind(code, text), text) for text, code in zip_longest(record.notes, codes)]
