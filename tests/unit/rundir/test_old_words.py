"""Records without codes are read by their words, in one place."""

from __future__ import annotations

from perfscope.probes.torch import by_hand
from perfscope.rundir.old_words import ceiling_kind, missing_figure_of, note_kind, notes_of
from perfscope.rundir.records import rank_record
from perfscope.vocabulary.ceilings import CeilingKind
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.notes import NoteKind


def test_a_recorded_code_comes_before_the_words() -> None:
    assert note_kind("other", "a window was put off") is NoteKind.OTHER
    assert missing_figure_of("windows", "layers") is Figure.WINDOWS


def test_old_notes_have_the_kind_that_their_words_tell() -> None:
    assert note_kind(None, "a window was put off: another profiler runs") is NoteKind.WINDOW
    assert note_kind(None, by_hand.NOTE) is NoteKind.STEPS
    assert note_kind(None, "no hardware counters of this host: no Python") is NoteKind.NO_COUNTERS
    assert note_kind(None, "no step marks: the whole file counts as one step") is NoteKind.NO_STEP_MARKS
    assert note_kind("of a later version", "something else") is NoteKind.OTHER


def test_notes_and_kinds_of_unequal_length_are_read() -> None:
    short = rank_record({"notes": ["no windows: why", "another"], "note_kinds": ["window"]})
    assert notes_of(short) == [(NoteKind.WINDOW, "no windows: why"), (NoteKind.OTHER, "another")]
    assert notes_of(rank_record({"notes": ["one"], "note_kinds": ["window", "other"]})) == [
        (NoteKind.WINDOW, "one")
    ]
    assert notes_of(rank_record({"notes": 3})) == []
    assert notes_of(rank_record({"notes": ["one"], "note_kinds": [[]]})) == [(NoteKind.OTHER, "one")]


def test_old_entries_of_what_is_missing_have_their_figure() -> None:
    assert missing_figure_of(None, "step breakdown, layers and collectives") is Figure.WINDOWS
    assert missing_figure_of(None, "layers") is Figure.LAYERS
    assert missing_figure_of(None, "something that a later version says") is Figure.OTHER


def test_a_peak_that_was_not_measured_has_the_kind_of_its_words() -> None:
    assert ceiling_kind("gemm", "anything") is CeilingKind.GEMM
    assert ceiling_kind(None, "STREAM triad, node 0, 4 threads") is CeilingKind.TRIAD
    assert ceiling_kind(None, "device GEMM") is CeilingKind.DEVICE_GEMM
    assert ceiling_kind(None, "GEMM float32") is CeilingKind.GEMM
    assert ceiling_kind(None, "what torch can measure") is None
