"""Layer, axis and bytes of every call in a traced window, against what the scheme noted as it made it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("torch")

from perfscope.analysis.call_labels import CallLabels
from perfscope.analysis.results import Communication, RankResult, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.rundir.scheme_records import BenchRecord
from perfscope.vocabulary.communication import Unattributed
from tests.integration.test_communication import check_sums
from tests.runners.test_bench_cli import bench
from tests.runners.test_group_marks import SEEN_AS, payload

pytestmark = pytest.mark.torch
LENET = ("--model", "lenet", "--input", "3x32x32")
WIDE = ("--model", "smallcnn", "--input", "3x16x16")
TOKENS = ("--model", "transformer", "--input", "32")
CLICKS = ("--model", "dlrm-nano", "--input", "16")
QUIET = (
    "--ceilings",
    "off",
    "--sample-interval",
    "off",
    "--threads",
    "1",
    "--windows",
    "1",
    "--overhead",
    "1",
)
STEPS = 8
Row = Mapping[str, Any]


class Kind(NamedTuple):
    """Calls that are alike; `layers`: which ones they serve, sorted."""

    collective: str
    axis: str
    bytes: int
    layers: tuple[str, ...]

    @classmethod
    def of(cls, row: Row) -> Kind:
        """A call in a trace."""
        layers = tuple(sorted(row["layer"].split("; "))) if row["layer"] else ()
        return cls(row["collective"], row["axis"], payload(dict(row)), layers)


class Case:
    """A bench run, analyzed."""

    def __init__(self, folder: Path, scheme: str, ranks: int, model: Sequence[str]) -> None:
        words = ["run", scheme, "--ranks", str(ranks), "--batch", "24", "--steps", str(STEPS)]
        words += ["--period", "1"] if scheme in ("dp.local_sgd", "dp.diloco") else []
        done = bench(*words, *model, *QUIET, "-o", "run", cwd=folder)
        assert done.returncode == 0, done.stderr
        ingest_run(folder / "run")
        self.source = RunReader(folder / "run")
        self.analysis: RunAnalysis = analyze_run(self.source)
        self.records: Mapping[int, BenchRecord] = self.source.bench_records()
        assert set(self.records) == set(range(ranks))

    def calls(self, rank: int, *, marks: bool = True) -> list[Row]:
        """Communication of a rank's window, labeled; without what the scheme says of it, if so asked."""
        table = self.source.timeline(rank, 0)
        if not marks:
            names = table["name"].cast(pa.string())
            table = table.filter(pc.invert(pc.starts_with(names, layout.MARK_SERVES)))
        labels = CallLabels(self.source, self.analysis.process_groups)
        return [row for row in labels.labeled(table, rank, 0).to_pylist() if row["kind"] == "comm"]

    def noted(self, rank: int) -> Counter[Kind]:
        """Calls of the whole run."""
        found: Counter[Kind] = Counter()
        for call in self.records[rank].calls:
            name = SEEN_AS.get(call.collective, call.collective)
            found[Kind(name, call.axis, call.bytes, tuple(sorted(call.layers)))] += call.count
        return found

    def by_library(self, rank: int) -> Counter[tuple[str, str, int]]:
        """(collective, axis, bytes) -> calls of a step that torch makes by itself."""
        assert self.source.run.scheme is not None
        found: Counter[tuple[str, str, int]] = Counter()
        for call in self.source.run.scheme.calls_of_rank[str(rank)]:
            if call.by_library:
                found[SEEN_AS.get(call.collective, call.collective), call.axis, call.bytes] += round(
                    call.count
                )
        return found

    def shares(self) -> dict[tuple[str, ...], dict[str, float]]:
        """Layers of a call -> part of its bytes that each of them has."""
        return {
            tuple(sorted(call.layers)): {
                layer: size / sum(call.layers.values()) for layer, size in call.layers.items()
            }
            for record in self.records.values()
            for call in record.calls
        }


def check_communication(parts: Communication | None, exposed_ns: int) -> None:
    """Sums to the nanosecond; what is of no layer is for a true reason."""
    check_sums(parts, exposed_ns)
    assert parts is not None
    reasons = {entry.reason for entry in parts.unattributed if entry.exposed_ns}
    assert reasons <= {Unattributed.OUTSIDE_STEPS, Unattributed.NO_LAYER_TENSORS}


def check_bytes(result: RankResult, rows: Iterable[Row], shares: Mapping[tuple[str, ...], Any]) -> None:
    """The bytes of each layer, in the mean step."""
    assert result.communication is not None
    expected: dict[str, float] = defaultdict(float)
    steps = {row["step"] for row in rows if row["step"] >= 0}
    for kind in (Kind.of(row) for row in rows if row["step"] >= 0):
        for layer, share in shares[kind.layers].items():
            expected[layer] += kind.bytes * share / len(steps)
    found = {entry.layer: entry.bytes for entry in result.communication.by_layer if entry.bytes}
    assert found == {layer: pytest.approx(size, abs=0.51) for layer, size in expected.items()}


def check_rank(case: Case, result: RankResult, *, in_steps: bool) -> list[Row]:
    """Call by call; returns the rows. `in_steps`: every step of the window makes all its calls itself."""
    rows = case.calls(result.rank)
    num_steps = len({row["step"] for row in rows if row["step"] >= 0})
    library, noted = case.by_library(result.rank), case.noted(result.rank)
    made = Counter(Kind.of(row) for row in rows if row["collective"] != "recv")
    queued = [row for row in rows if in_steps or row["launch_ns"] is not None]
    assert all(Kind.of(row).layers for row in queued)
    ours = Counter({kind: count for kind, count in made.items() if kind[:3] not in library})
    if in_steps:
        assert ours == {kind: count * num_steps / STEPS for kind, count in noted.items()}
    else:
        assert {kind for kind in ours if kind.layers} == set(noted)
    theirs: Counter[tuple[str, str, int]] = Counter()
    for kind, count in made.items():
        theirs[kind[:3]] += count
    assert all(theirs[kind] == count * num_steps for kind, count in library.items())
    if in_steps and not library:
        check_bytes(result, rows, case.shares())
    return [{**row, "rank": result.rank} for row in rows]


def check_messages(rows: Iterable[Row]) -> None:
    """What one rank sends, another one receives, for the same layers (a pipeline's stages both name)."""
    ends: dict[str, Counter[tuple[Any, ...]]] = {"send": Counter(), "recv": Counter()}
    for row in rows:
        if row["collective"] in ends:
            pair = (row["rank"], row["peer"]) if row["collective"] == "send" else (row["peer"], row["rank"])
            ends[row["collective"]][(*pair, *Kind.of(row)[1:])] += 1
    assert ends["send"] == ends["recv"]


_DATA = ("dp.perlayer", "dp.packed", "dp.dist_update", "dp.ddp", "dp.fsdp", "dp.local_sgd")
_CODECS = ("dp.ddp+fp16", "dp.packed+powersgd", "dp.perlayer+topk", "dp.perlayer+int8", "dp.perlayer+prio")
_SERVERS = ("ps.sync", "ps.async_sgd", "ps.async_msgd", "easgd.original", "easgd.async", "easgd.async_mom")
_ELASTIC = ("easgd.sync1", "easgd.sync2", "easgd.sync_ar")
_SPLIT = ("mp.filter", "mp.channel", "mp.fc_tp", "mp.spatial")
_PIPELINES = ("pp.gpipe", "pp.1f1b", "pp.interleaved")
_HYBRIDS = ("hy.filter_dp", "hy.channel_dp", "hy.fctp_dp", "hy.owt", "hy.auto", "hy.pp_dp", "hy.numa_replica")
_CONTEXT, _TABLES = ("cp.gather", "cp.ring", "cp.all_to_all"), ("emb.table", "emb.row", "emb.column")
_NEWER = (*_CONTEXT[1:], *_TABLES, "dp.gossip", "dp.diloco", "hy.owt+overlap")
# The exchange of a step is under way while the next one begins.
_OVERLAPPED = ("dp.fwd_overlap", "easgd.sync3")
# A message may be under way as the window opens or closes.
_ASYNCHRONOUS = ("ps.async_sgd", "ps.async_msgd", "easgd.async", "easgd.async_mom")
_QUICK = {("dp.packed", 2), ("mp.fc_tp", 2), ("ps.sync", 4)}
_SLOW = {
    *((scheme, 2) for scheme in ("dp.perlayer", "dp.dist_update", "dp.ddp", "dp.fsdp", "dp.packed+powersgd")),
    *((scheme, 2) for scheme in ("ps.async_msgd", "easgd.original", "easgd.sync1")),
    *((scheme, 2) for scheme in ("mp.filter", "mp.channel", "mp.spatial", "hy.numa_replica", "hy.owt")),
    *((scheme, 2) for scheme in ("pp.gpipe", "pp.1f1b", "pp.interleaved", "cp.gather")),
    *((scheme, 2) for scheme in _NEWER),
    *((scheme, 4) for scheme in ("hy.fctp_dp", "hy.pp_dp", "dp.hsdp", "dp.hierarchical", "hy.pp_dp+overlap")),
}
_CASES = [
    *(
        (scheme, ranks)
        for scheme in (*_DATA, *_CODECS, *_SERVERS, *_ELASTIC, *_OVERLAPPED)
        for ranks in (2, 4)
    ),
    *((scheme, ranks) for scheme in (*_SPLIT, "hy.numa_replica", "hy.owt", "hy.auto") for ranks in (2, 4)),
    *((scheme, 4) for scheme in _HYBRIDS[:-1]),
    *(("hy.numa_replica", 8), ("dp.hsdp", 4)),
    *((scheme, ranks) for scheme in _PIPELINES[:2] for ranks in (2, 4)),
    *(("pp.interleaved", ranks) for ranks in (2, 3)),
    *(("cp.gather", ranks) for ranks in (2, 4)),
    *((scheme, 2) for scheme in _NEWER),
    *((scheme, 4) for scheme in ("dp.hierarchical", "hy.pp_dp+overlap", "hy.filter_dp+overlap")),
]


@pytest.mark.parametrize(
    ("scheme", "ranks"),
    [
        pytest.param(
            *case,
            id=f"{case[0]}-{case[1]}",
            marks=() if case in _QUICK else pytest.mark.slow if case in _SLOW else pytest.mark.sweep,
        )
        for case in dict.fromkeys(_CASES)
    ],
)
def test_every_call_has_the_layer_axis_and_bytes_of_the_scheme(
    tmp_path: Path, scheme: str, ranks: int
) -> None:
    case = Case(tmp_path, scheme, ranks, model_for(scheme, ranks))
    whole = case.analysis.communication
    assert whole is not None and whole.exposed_ns > 0
    check_communication(whole, whole.exposed_ns)
    rows = []
    for result in case.analysis.ranks:
        assert result.breakdown_ns is not None
        check_communication(result.communication, result.breakdown_ns.exposed_comm)
        rows += check_rank(case, result, in_steps=scheme not in (*_OVERLAPPED, *_ASYNCHRONOUS))
    if scheme not in _ASYNCHRONOUS:
        check_messages(rows)


def model_for(scheme: str, ranks: int) -> Sequence[str]:
    """One that so many ranks can divide."""
    if scheme in _TABLES:
        return CLICKS
    if scheme in _CONTEXT or (scheme == "pp.interleaved" and ranks > 2):
        return TOKENS
    return WIDE if scheme in ("mp.filter", "mp.channel") and ranks > 2 else LENET


@pytest.mark.parametrize(
    "scheme",
    [
        *(pytest.param(scheme, marks=pytest.mark.sweep) for scheme in _SPLIT[1:]),
        *(pytest.param(scheme, marks=pytest.mark.slow) for scheme in (_SPLIT[0], "cp.gather")),
    ],
)
def test_layers_are_found_without_what_the_scheme_says(tmp_path: Path, scheme: str) -> None:
    """The marks that any training gets lead to the layers of the ledger."""
    case = Case(tmp_path, scheme, 2, model_for(scheme, 2))
    for rank in case.records:
        with_marks, without = case.calls(rank), case.calls(rank, marks=False)
        inside = [
            (said["layer"], found["layer"])
            for said, found in zip(with_marks, without, strict=True)
            if "; " not in (said["layer"] or "")
        ]
        assert inside and all(said == found for said, found in inside)
