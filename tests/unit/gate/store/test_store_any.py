"""Any figures and any names: both kinds of file keep them without loss, or refuse them in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.errors import UsageError
from perfscope.gate.records import (
    CollectiveUse,
    Composition,
    Fingerprint,
    LayerTime,
    Phases,
    RunFigures,
    Surroundings,
)
from perfscope.gate.store import BaselineError, Store, open_store
from perfscope.gate.store.json_file import parse, render
from perfscope.gate.store.shareable import decode_run, encode_run, shareable
from tests.support.gate_store_runs import numbered

OTHER = Fingerprint(cpu="Xeon", num_cpus=64, gpus=("H100",) * 8, torch="2.13.0", world_size=8, batch=256)
HOSTILE = (
    "a \"quoted\" 'name'; DROP TABLE runs; --",
    "two\nlines\r\n",
    "../../etc/passwd",
    "right \u202eto left",
    "emoji \U0001f9d9\u200d\u2640\ufe0f",
    "line\u2028separator",
    "%s {0} $HOME `id`",
    "<<<<<<< HEAD",
    "n" * 200,
)
kinds = pytest.mark.parametrize("name", ["b.json", "h.sqlite"])


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Store]:
    return lambda name: open_store(tmp_path / name, create=True)


texts = st.text(max_size=20)
numbers_ = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | numbers_
counts = st.integers(0, 2**63 - 1)
dictionaries = st.dictionaries(texts, texts, max_size=3)
figures = st.builds(
    RunFigures,
    name=texts,
    fingerprint=st.builds(
        Fingerprint,
        cpu=texts,
        num_cpus=st.none() | counts,
        gpus=st.lists(texts, max_size=2).map(tuple),
        batch=st.none() | counts,
        scheme=texts,
    ),
    metrics=st.dictionaries(st.sampled_from(["step_p10", "throughput", "later"]), numbers_),
    absent=dictionaries,
    num_steps=counts,
    phases=st.none() | st.builds(Phases, step=numbers_, input_wait=maybe, backward=maybe),
    composition=st.none()
    | st.builds(
        Composition,
        **{name: numbers_ for name in Composition.__struct_fields__ if name != "num_steps"},
        num_steps=counts,
    ),
    layers=st.lists(
        st.builds(LayerTime, layer=texts, forward_ns=numbers_, backward_ns=numbers_), max_size=2
    ).map(tuple),
    collectives=st.lists(
        st.builds(
            CollectiveUse, name=texts, calls=numbers_, bytes=maybe, duration_ns=numbers_, transfer_ns=maybe
        ),
        max_size=2,
    ).map(tuple),
    surroundings=st.builds(
        Surroundings,
        start_unix_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
        commit=texts,
        dirty=st.none() | st.booleans(),
        command=st.lists(texts | st.sampled_from(["/home/me/train.py", "--out=/a b/c:/d/e"]), max_size=3).map(
            tuple
        ),
        hosts=st.lists(texts, max_size=2).map(tuple),
        packages=dictionaries,
        environment=dictionaries,
        options=dictionaries,
        cpu_hz=maybe,
    ),
    clean=st.none() | st.booleans(),
    clean_reason=texts,
    problem=texts,
    pair=st.none() | counts,
)


@settings(max_examples=150, deadline=None)
@given(figures)
def test_any_run_is_written_and_read_back_without_loss(run: RunFigures) -> None:
    once = shareable(run)
    assert shareable(once) == once
    line = encode_run(once)
    assert line.isascii()
    assert "\n" not in line
    assert decode_run(line) == once
    assert once.metrics == run.metrics
    assert once.composition == run.composition


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), figures), max_size=5))
def test_a_baseline_reads_back_what_was_rendered_and_renders_it_the_same(
    named: list[tuple[str, RunFigures]],
) -> None:
    groups: dict[tuple[str, Fingerprint], list[RunFigures]] = {}
    for name, run in named:
        kept = shareable(run)
        groups.setdefault((name, kept.fingerprint), []).append(kept)
    content = render(groups)
    again = parse(content, Path("b.json"))
    assert render(again) == render(parse(render(again), Path("b.json")))
    assert again.keys() == groups.keys()
    for group, runs in again.items():
        assert all(run in groups[group] for run in runs)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(figures, min_size=1, max_size=3), name=texts)
def test_both_kinds_of_file_keep_the_same(tmp_path: Path, runs: list[RunFigures], name: str) -> None:
    kept: list[Any] = []
    for file in ("same.json", "same.sqlite"):
        (tmp_path / file).unlink(missing_ok=True)
        store = open_store(tmp_path / file, create=True)
        same = [replace(run, fingerprint=runs[0].fingerprint) for run in runs]
        try:
            entry = store.put(name, same, keep=2)
        except UsageError as refused:
            kept.append(str(refused))
            continue
        kept.append((entry, store.entries(), store.runs(name, entry.key)))
    assert kept[0] == kept[1]


@kinds
@pytest.mark.parametrize("benchmark", HOSTILE)
def test_a_hostile_name_survives(make: Callable[[str], Store], name: str, benchmark: str) -> None:
    store = make(name)
    run = replace(
        numbered(0), name=benchmark, fingerprint=replace(OTHER, scheme=benchmark, gpus=(benchmark,))
    )
    entry = store.put(benchmark, [run])
    assert entry.name == benchmark
    assert open_store(store.path).find(benchmark, run.fingerprint) == entry
    assert store.runs(benchmark, entry.key)[0].fingerprint == run.fingerprint
    assert [path.name for path in store.path.parent.iterdir()] == [name]


@kinds
def test_bytes_of_a_path_that_are_no_text_are_spelled_out(make: Callable[[str], Store], name: str) -> None:
    store = make(name)
    run = numbered(0, command=("train", "--tag=\udcff"), packages={"x\ud800": "1"})
    entry = store.put("train", [replace(run, name="runs/caf\udce9")])
    (kept,) = store.runs("train", entry.key)
    assert kept.name == "caf\\udce9"
    assert kept.surroundings.command == ("train", "--tag=\\udcff")
    assert kept.surroundings.packages == {"x\\ud800": "1"}


@kinds
@pytest.mark.parametrize("benchmark", ["", "  \n", "a\0b", "half \ud800", "n" * 201])
def test_a_name_that_no_file_can_hold_is_refused_in_one_line(
    make: Callable[[str], Store], name: str, benchmark: str
) -> None:
    store = make(name)
    with pytest.raises(UsageError) as refused:
        store.put(benchmark, [numbered(0)])
    assert str(refused.value).isprintable()
    assert "--name" in str(refused.value)
    assert store.find(benchmark, OTHER) is None
    assert (store.nearest(benchmark), store.runs(benchmark, OTHER.key)) == ((), ())


@kinds
@pytest.mark.parametrize(
    "run",
    [
        replace(numbered(0), metrics={"step_p10": float("nan")}),
        replace(numbered(0), metrics={"step_p10": float("inf")}),
        numbered(2**70),
        replace(numbered(0), metrics={"step_p10": "fast"}),  # type: ignore[dict-item]
    ],
    ids=["nan", "infinite", "late", "words"],
)
def test_a_run_that_could_not_be_read_again_is_refused_and_nothing_changes(
    make: Callable[[str], Store], name: str, run: RunFigures
) -> None:
    store = make(name)
    entry = store.put("train", [numbered(1)])
    with pytest.raises(BaselineError, match=r"run-\d+ cannot be stored") as refused:
        store.put("train", [numbered(2), run])
    assert refused.value.exit_code == 4
    assert open_store(store.path).entries() == (entry,)
