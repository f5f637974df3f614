"""Where a rank stands by its last mark, in words."""

from __future__ import annotations

from perfscope.messages.hangs import Place, place_text


def test_a_part_that_is_over_is_where_the_rank_was_not_where_it_is() -> None:
    place = Place(source="mark", part="checkpoint")
    assert place_text(place) == "in writing a checkpoint by its last mark"
    over = Place(source="mark", part="checkpoint", part_ended=True)
    assert place_text(over) == "after writing a checkpoint by its last mark"
