"""run.json, rank.json and layers.json as typed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from perfscope.rundir.documents import Document
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.rundir.typed import (
    Count,
    Nanoseconds,
    NumRanks,
    Record,
    Size,
    WorldSize,
    decode_record,
    read_as,
)

BatchSize = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class FrameworkRecord(Record, frozen=True):
    """What trained; `backend` is Keras's."""

    name: str = ""
    version: str = ""
    backend: str = ""

    @property
    def full_name(self) -> str:
        """``torch``, ``keras-jax``; "" where the rank does not say."""
        return f"{self.name}-{self.backend}" if self.name and self.backend else self.name


class RootModule(Record, frozen=True):
    """The outermost module.

    Attributes:
        name: of the model itself, inside of wrappers.
        type: class name, with wrappers.
        data_parallel: the batch is split over `dp_size` ranks, None = all of them.
        dp_unknown: why it is not known whether it is.
    """

    name: str = ""
    type: str = ""
    data_parallel: bool = False
    dp_size: NumRanks | None = None
    dp_unknown: str = ""


class MeshRecord(Record, frozen=True):
    """The device mesh of the program: axis names, and ranks along each."""

    axes: tuple[str, ...] = ()
    shape: tuple[Count, ...] = ()


class SamplesRecord(Record, frozen=True):
    """Where the number of samples in a step is known from: "loader" or elsewhere."""

    source: str = msgspec.field(default="", name="from")


class Overhead(Record, frozen=True):
    """What recording cost the rank, ns."""

    windows_ns: Nanoseconds | None = None
    always_on_ns: Nanoseconds | None = None

    @property
    def total_ns(self) -> int | None:
        """None: the rank does not say (killed early)."""
        parts = [part for part in (self.windows_ns, self.always_on_ns) if part is not None]
        return sum(parts) if parts else None


class Memory(Record, frozen=True):
    """Most memory that the process held, and what its tensors took in the third update, bytes."""

    peak_rss_bytes: Size | None = None
    peak_device_bytes: Size | None = None
    peak_reserved_bytes: Count | None = None
    parameter_bytes: Count | None = None
    gradient_bytes: Count | None = None
    optimizer_bytes: Count | None = None
    buffer_bytes: Count | None = None


class Besides(Record, frozen=True):
    """What the thread that trains did besides training, as in schema.STEPS; None: the rank does not say."""

    evaluation_ns: Nanoseconds | None = None
    rollout_ns: Nanoseconds | None = None
    inference_ns: Nanoseconds | None = None
    checkpoint_ns: Nanoseconds | None = None
    gc_ns: Nanoseconds | None = None


class Life(Record, frozen=True):
    """When a rank's process was started and when it ended, ns on its host's monotonic clock.

    Attributes:
        started_ns: by the kernel's records, to 10 ms; None: not known.
        ended_ns: when its program had ended; None: it was killed.
        before: until its first step.
        total: until its end.
    """

    started_ns: int | None = None
    ended_ns: int | None = None
    before: Besides = Besides()
    total: Besides = Besides()


class GroupRecord(Record, frozen=True):
    """A process group; `ranks` None = not known, `desc` is the framework's description."""

    name: str | None = None
    desc: str | None = None
    backend: str | None = None
    ranks: tuple[Count, ...] | None = None


class ProbeMissing(Record, frozen=True):
    """A figure that the rank's probe cannot give, and why; `figure` is its code (`vocabulary.figures`)."""

    what: str
    figure: str | None = None
    reason: str | None = None


class RankRecord(Record, frozen=True):
    """rank.json.

    Attributes:
        world_size: ranks of the job, as the rank was given it.
        num_devices: of its process (JAX), where known.
        num_steps: written when the rank ended.
        labels: of the run, that the program gave.
        affinity: CPUs it may run on.
        anchors: (monotonic ns, Unix ns), as read during the run.
        files: name of a file beside it -> its seal.
    """

    host: str = ""
    pid: int | None = None
    local_rank: Count | None = None
    world_size: WorldSize | None = None
    rank_source: str = ""
    num_threads: Size | None = None
    num_devices: WorldSize | None = None
    num_steps: Count | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    finished: bool | None = None
    python: str = ""
    device: str = ""
    backend: str = ""
    framework: FrameworkRecord = FrameworkRecord()
    mpi_library: str = ""
    root: RootModule | None = None
    mesh: MeshRecord | None = None
    samples: SamplesRecord = SamplesRecord()
    overhead: Overhead = Overhead()
    memory: Memory = Memory()
    affinity: tuple[int, ...] = ()
    anchors: tuple[tuple[int, int], ...] = ()
    life: Life = Life()
    groups: tuple[GroupRecord, ...] = ()
    notes: tuple[str, ...] = ()
    note_kinds: tuple[object, ...] = ()
    missing: tuple[ProbeMissing, ...] = ()
    files: dict[str, object] = msgspec.field(default_factory=dict)


class LayerRow(Record, frozen=True):
    """One module of layers.json: its own parameters, without those of modules in it."""

    layer: str
    type: str | None = None
    params: Count | None = None
    param_bytes: Count | None = None
    param_shapes: tuple[tuple[Count, ...], ...] | None = None


class LayersRecord(Record, frozen=True):
    """layers.json: modules in order of registration.

    Attributes:
        root: type of the outermost one.
        renamed: layers whose model had bare names until the process had a second model -> their names since.
    """

    root: str | None = None
    layers: tuple[LayerRow, ...] = ()
    renamed: dict[str, str] = msgspec.field(default_factory=dict)


class Exit(Record, frozen=True):
    """How the command ended; both None where that is not known."""

    code: int | None = None
    signal: int | str | None = None


class GitRecord(Record, frozen=True):
    """The repository that the run was started in."""

    commit: str | None = None
    dirty: bool | None = None


class SlurmAccount(Record, frozen=True):
    """What Slurm's accounting says of the job."""

    state: str | None = None
    elapsed_s: float | None = None
    queued_s: float | None = None
    max_rss_bytes: float | None = None
    energy_joules: float | None = None


class NodeLook(Record, frozen=True):
    """A look at a node while the job did nothing on it, "before" or "after"; `others` are users."""

    node: str | None = None
    when: str | None = None
    busy_cpus: float | None = None
    others: str | None = None


class SlurmJob(Record, frozen=True):
    """The job that the run was a part of; `step_id` is a number where the ranks are a step of srun's."""

    job_id: int | None = None
    job_name: str | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    step_id: int | str | None = None
    partition: str | None = None
    node_list: str | None = None
    num_tasks: int | None = None
    restart_count: int | None = None
    job: SlurmAccount = SlurmAccount()
    neighbours: tuple[NodeLook, ...] = ()


class FrameworkRunRecord(Record, frozen=True):
    """What `perfscope bench run --framework` was asked, and which program trained.

    Attributes:
        how: the program's way to train, in words.
        version: of the framework.
        data: what the samples are.
    """

    threads: Count | None = None
    dtype: str = ""
    input_shape: tuple[Count, ...] = ()
    how: str = ""
    version: str = ""
    learning_rate: float | None = None
    momentum: float | None = None
    seed: int | None = None
    data: str | None = None
    num_classes: Count | None = None


class Options(Record, frozen=True):
    """What was asked for, of `perfscope run` and of what called it; `RunRecord.all_options` has all.

    Attributes:
        sampling: None = switched off; UNSET = a run of before this was recorded.
        cluster: spec of the emulated cluster; None = real hosts.
        overhead: share of the run's time that recording may cost.
        framework_run: None = not a run of `perfscope bench run --framework`.
    """

    trace: bool | None = None
    windows: Count | None = None
    samples_per_step: BatchSize | None = None
    sampling: object | msgspec.UnsetType | None = msgspec.UNSET
    ceilings: str | None = None
    cluster: str | None = None
    overhead: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    framework_run: FrameworkRunRecord | None = None

    @property
    def no_trace(self) -> bool:
        return self.trace is False or self.windows == 0


class RunRecord(Record, frozen=True):
    """run.json.

    Attributes:
        status: "running", "finished" or "incomplete"; "" where it does not say.
        incomplete: why Slurm cut the run short.
        expected_ranks: processes that the launcher was to start.
        world_size: ranks of the job, as the launcher was given it.
        scheme: what a bench run is, see runners.identity; None for other runs.
        collected: directories that the run was collected from.
        document: run.json as it was read.
    """

    name: str = ""
    origin: str = ""
    status: str = ""
    incomplete: str = ""
    perfscope_version: str = ""
    cwd: str = ""
    launcher: str = ""
    host: str = ""
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None
    exit: Exit | None = None
    expected_ranks: NumRanks | None = None
    attached_ranks: NumRanks | None = None
    world_size: WorldSize | None = None
    attach_notes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    git: GitRecord | None = None
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    options: Options = Options()
    scheme: SchemeRecord | None = None
    slurm: SlurmJob | None = None
    collected: tuple[object, ...] = ()
    document: dict[str, object] = msgspec.field(default_factory=dict)

    @property
    def is_imported(self) -> bool:
        return self.origin == "import"

    @property
    def is_open(self) -> bool:
        """Whether the run was not closed: it goes on, or its wrapper (of several Slurm tasks, one) died.

        A run that was marked later, with the reason (`perfscope slurm follow`, `slurm close`), is closed.
        """
        return self.status == "running" or (
            self.status == "incomplete" and self.exit is None and not self.incomplete
        )

    @property
    def all_options(self) -> dict[str, object]:
        options = self.document.get("options")
        return options if isinstance(options, dict) else {}


def decode_run(document: Document) -> tuple[RunRecord, tuple[str, ...]]:
    """run.json as decode_record gives it, with the document in it, and that of the scheme in the scheme."""
    kept = {**document, "document": document}
    if isinstance(scheme := document.get("scheme"), dict):
        kept["scheme"] = {**scheme, "document": scheme}
    return decode_record(RunRecord, kept)


def rank_record(document: Mapping[str, object]) -> RankRecord:
    """rank.json, where a wrong type is of no account to the caller."""
    return read_as(RankRecord, document)
