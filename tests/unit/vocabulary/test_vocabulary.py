"""Tables beside the vocabulary have a row for each of its members."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

import perfscope.messages.efficiency
import perfscope.messages.links
import perfscope.probes
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.study.results import POP_ROWS
from perfscope.ingest.formats.frameworks import reader_of
from perfscope.probes.bootstrap import agent
from perfscope.rundir import layout
from perfscope.vocabulary.efficiency import PopFactor
from perfscope.vocabulary.frameworks import TRAINERS, FrameworkName
from perfscope.vocabulary.links import LinkClass

PROBES = Path(perfscope.probes.__file__).parent


@pytest.mark.parametrize(
    ("table", "kind"),
    [(perfscope.messages.links.TITLES, LinkClass), (perfscope.messages.efficiency.TITLES, PopFactor)],
)
def test_every_member_has_its_words(table: Mapping[Enum, str], kind: type[Enum]) -> None:
    assert set(table) == set(kind)


def test_a_run_has_every_factor_but_those_of_several_runs() -> None:
    fields = set(Efficiency.__struct_fields__)
    assert {factor.value for factor in PopFactor} - fields == {"computation_scaling", "global_efficiency"}
    assert set(PopFactor) - set(POP_ROWS) == {PopFactor.COMMUNICATION}


def test_the_agent_waits_for_frameworks_of_the_catalogue() -> None:
    modules = set(agent._FRAMEWORKS.values())
    assert all((PROBES / name.replace(".", "/")).with_suffix(".py").is_file() for name in modules)
    probes = {name.partition(".")[0] for name in modules if not name.startswith("hooks.")}
    assert probes - {name.value for name in FrameworkName} == {"mpi"}
    assert {name.value for name in TRAINERS} <= probes


def test_every_suffix_of_a_window_that_is_read_whole_has_its_reader() -> None:
    for suffix in (layout.TENSORFLOW, layout.JAX, layout.MXNET, layout.CALLS):
        assert callable(reader_of(suffix))
