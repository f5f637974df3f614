"""Every kind of disturbance has its English, in one place."""

from __future__ import annotations

from perfscope.messages.disturbances import WORDS, disturbed_by
from perfscope.vocabulary.disturbances import SLOW_COMPUTATION, DisturbanceKind


def test_every_kind_has_words() -> None:
    assert set(WORDS) == set(DisturbanceKind)
    for words in WORDS.values():
        assert words.label and words.by and words.remedy.endswith(".")


def test_a_kind_of_another_version_is_named_as_it_was_recorded() -> None:
    assert disturbed_by("steal") == "the hypervisor"
    assert disturbed_by("solar_flare") == "solar flare"


def test_others_on_the_network_slow_no_computation() -> None:
    assert DisturbanceKind.STEAL in SLOW_COMPUTATION
    assert DisturbanceKind.NETWORK_NEIGHBOR not in SLOW_COMPUTATION
