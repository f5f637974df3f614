"""A window of JAX's profiler: XPlane, its operators joined to the names in the compiled modules.

On CPUs XLA runs a module's operators on threads of its own, small modules on the calling thread; on GPUs they
are kernels on streams. Either way an event tells its instruction (`hlo_op`) and its module, and the profile
carries the modules. What only encloses operators (executors, loops) is left out: its time is theirs.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.errors import TraceError, UnreadableFileError
from perfscope.ingest.collectives import Collective, canonical
from perfscope.ingest.formats.hlo import NOWHERE, Instruction, Module, Modules
from perfscope.ingest.formats.trace import UNKNOWN, FrameworkTrace
from perfscope.ingest.formats.xplane import XEvent, XLine, XPlane, read_xspace
from perfscope.ingest.inflate import read_whole
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.records import LayersRecord
from perfscope.rundir.typed import read_as

MARK_DEVICES = "perfscope.devices:"  # + "device=process,..." of every device, by probes/jax/trace.py
WORLD = "jax"  # the group of all processes, as in rank.json
_ENCLOSING = frozenset(("while", "conditional"))
_EPOCH_NS = 10**17  # later than 1973: a time since the epoch, not since the start of the profile
_DEVICE = re.compile(r"^/device:(?:GPU|TPU|ROCM|CUSTOM):(\d+)")
_COPY = re.compile(
    r"DevicePut|BufferFromHost|MakeBuffer|Transfer(To|From)|CopyTo(Host|Device|Literal)|ToLiteral|Memcpy|Memset"
    r"|HostToDevice|DeviceToHost|[HD]2[HD]",
    re.IGNORECASE,
)
_NOISE = re.compile(r"^end: |^ThreadpoolListener|^ThunkExecutor|^\$|^Wait for (donation|usage) holds")
_LEAST_HOST_NS = 1000  # of calls on the training thread: shorter ones explain nothing
_COLLECTIVES = {
    "collective-permute": "collective_permute",
    "collective-broadcast": "broadcast",
    "ragged-all-to-all": "all_to_all",
}


def read_jax(path: Path) -> FrameworkTrace:
    """The profile as a trace, in Unix time.

    Raises:
        TraceError: it is no profile.
    """
    return _Reader(path).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._trace = FrameworkTrace()
        self._offset = 0
        self._processes: dict[int, int] = {}
        self._known = _known_layers(path)
        self._named_ns = self._inferred_ns = self._total_ns = 0
        self._names: dict[str, str | None] = {}

    def read(self) -> FrameworkTrace:
        planes = read_xspace(self._path)
        try:
            self._modules = Modules(read_whole(self._path))
            self._read(planes)
        except (IndexError, ValueError) as error:
            raise TraceError(f"{self._path}: its compiled modules cannot be read ({error})") from None
        self._tell()
        return self._trace

    def _read(self, planes: list[XPlane]) -> None:
        for plane in planes:
            if "profile_start_time" in plane.stats:
                self._offset = int(plane.stats["profile_start_time"])
        hosts = [plane for plane in planes if plane.name.startswith("/host:CPU")]
        lines = [line for plane in hosts for line in plane.lines]
        for line in lines:
            self._marks(line)
        for line in lines:
            self._thread(line)
        for plane in planes:
            device = _DEVICE.match(plane.name)
            if device:
                self._device(plane, int(device[1]))

    # -- lanes ------------------------------------------------------------------------------------------

    def _marks(self, line: XLine) -> None:
        for event in line.events:
            if event.name.startswith(layout.MARK_STEP):
                number = event.name[len(layout.MARK_STEP) :]
                start = self._start(line, event)
                if number.isdigit():
                    self._trace.steps.append((int(number), start, start + event.duration_ps // 1000))
            elif event.name.startswith(MARK_DEVICES):
                pairs = (pair.split("=") for pair in event.name[len(MARK_DEVICES) :].split(","))
                self._processes = {int(device): int(process) for device, process in pairs}

    def _thread(self, line: XLine) -> None:
        """A host thread: the one that trains, one that runs operators, or of no interest."""
        is_main = any(event.name.startswith(layout.MARK_STEP) for event in line.events)
        operators = _leaves([event for event in line.events if "hlo_op" in event.stats])
        without_op = [event for event in line.events if "hlo_op" not in event.stats]
        copies = [event for event in without_op if _COPY.search(event.name)]
        self._trace.num_read += len(line.events)
        if not (is_main or operators):
            return
        role = "main" if is_main else "executor"
        lane = self._trace.lane(line.id, role, "main thread" if is_main else line.name.partition("/")[0])
        for event in operators:
            self._operator(lane, line, event)
        for event in copies:
            self._plain(lane, line, event, "copy")
        for event in without_op if is_main else ():
            wanted = event.duration_ps >= 1000 * _LEAST_HOST_NS and not _NOISE.match(event.name)
            if wanted and not event.name.startswith("perfscope.") and not _COPY.search(event.name):
                self._plain(lane, line, event, "host")

    def _device(self, plane: XPlane, device: int) -> None:
        """A device: its streams, or where it has none the line of its operators."""
        streams = [line for line in plane.lines if line.name.startswith("Stream")]
        for line in streams or [line for line in plane.lines if line.name == "XLA Ops"]:
            self._trace.num_read += len(line.events)
            lane = self._trace.lane(line.id, "stream", line.name, device=device)
            for event in line.events:
                if _COPY.search(event.name):
                    self._plain(lane, line, event, "copy")
                else:
                    self._operator(lane, line, event)

    # -- spans ------------------------------------------------------------------------------------------

    def _start(self, line: XLine, event: XEvent) -> int:
        start = line.start_ns(event)
        return start if start > _EPOCH_NS else start + self._offset

    def _plain(self, lane: int, line: XLine, event: XEvent, kind: str) -> None:
        self._trace.add(lane, self._start(line, event), event.duration_ps // 1000, kind, event.name)

    def _operator(self, lane: int, line: XLine, event: XEvent) -> None:
        stats = event.stats
        program = stats.get("program_id")
        module = self._modules.find(
            str(stats.get("hlo_module", "")), program if isinstance(program, int) else None
        )
        instruction = module.instructions.get(str(stats.get("hlo_op"))) if module is not None else None
        if instruction is not None and instruction.opcode in _ENCLOSING:
            return
        start, dur = self._start(line, event), event.duration_ps // 1000
        collective = self._collective(event, instruction, module)
        if collective is not None:
            self._trace.add(lane, start, dur, "comm", event.name, collective=collective)
            return
        scope = instruction.scope if instruction is not None else NOWHERE
        layer = self._layer(scope.layer)
        self._total_ns += dur
        if layer is not None and instruction is not None:
            self._named_ns += dur
            self._inferred_ns += 0 if instruction.is_named else dur
        flops = instruction.flops if instruction is not None else None
        complete = instruction if instruction is not None and instruction.is_complete else None
        self._trace.add(
            lane,
            start,
            dur,
            "compute",
            event.name,
            phase=scope.phase,
            layer=layer,
            flops=UNKNOWN if flops is None else flops,
            bytes_read=UNKNOWN if complete is None else complete.operand_bytes,
            bytes_written=UNKNOWN if complete is None else complete.shape.num_bytes,
        )

    def _layer(self, scope: str | None) -> str | None:
        """The name in layers.json that this scope ends with: there is no `Net/` before it there."""
        if scope is None or not self._known:
            return scope
        if scope not in self._names:
            parts = scope.split("/")
            tails = ("/".join(parts[at:]) for at in range(len(parts)))
            self._names[scope] = next((tail for tail in tails if tail in self._known), scope)
        return self._names[scope]

    def _collective(
        self, event: XEvent, instruction: Instruction | None, module: Module | None
    ) -> Collective | None:
        """What an event moves; None where it is no communication (or one within this very device)."""
        opcode = instruction.opcode if instruction is not None else event.name.partition(".")[0]
        base = re.sub(r"-(start|done)$", "", opcode)
        name = _COLLECTIVES.get(base) or canonical(base)
        if name is None or ("-" not in base and base not in ("send", "recv")):
            return None  # `reduce` and `gather` are operators, `all-reduce` and `all-gather` collectives
        if instruction is None or module is None:
            return Collective(name=name)
        arrays = instruction.shape.arrays
        dtypes = {array.dtype for array in arrays}
        members = self._members(event, instruction, module)
        if len(members) == 1:
            return None
        return Collective(
            name=name,
            group=self._group(members),
            group_size=len(members) or None,
            in_bytes=None if opcode.endswith("-done") else instruction.operand_bytes,
            out_bytes=None if opcode.endswith("-start") else instruction.shape.num_bytes,
            dtype=next(iter(dtypes)) if len(dtypes) == 1 else None,
        )

    def _members(self, event: XEvent, instruction: Instruction, module: Module) -> tuple[int, ...]:
        """Device ids of this device's group; () = not known."""
        devices = module.devices
        ordinal = event.stats.get("device_ordinal")
        groups = [
            tuple(devices[position] for position in group if position < len(devices))
            for group in instruction.groups
        ]
        return next(
            (group for group in groups if ordinal in group), groups[0] if len(groups) == 1 else devices
        )

    def _group(self, members: tuple[int, ...]) -> str | None:
        """The name of the group of these devices; its ranks are the processes that have them."""
        if not members or not all(device in self._processes for device in members):
            return None
        ranks = sorted({self._processes[device] for device in members})
        everybody = sorted(set(self._processes.values()))
        name = WORLD if ranks == everybody else f"{WORLD} {','.join(map(str, ranks))}"
        if all(group["name"] != name for group in self._trace.groups):
            self._trace.groups.append({"name": name, "ranks": ranks})
        return name

    def _tell(self) -> None:
        trace = self._trace
        if self._processes:
            trace.world_size = len(set(self._processes.values()))
        if not len(self._modules):
            trace.notes.append(
                "the profile carries no compiled modules: operators have no layers and no sizes"
            )
        elif self._total_ns:
            share = self._named_ns / self._total_ns
            inferred = self._inferred_ns / self._total_ns
            note = (
                f"{100 * share:.0f} % of the operators' time has a layer "
                f"({100 * inferred:.0f} % by what they feed)"
            )
            explanation = "; the rest is work outside every named_scope, or fused from several"
            trace.notes.append(note if share > 0.995 else note + explanation)


def _leaves(events: list[XEvent]) -> list[XEvent]:
    """Of one thread's events those that enclose no other of them."""
    ordered = sorted(events, key=lambda event: (event.offset_ps, -event.duration_ps))
    kept = []
    for at, event in enumerate(ordered):
        following = ordered[at + 1] if at + 1 < len(ordered) else None
        end = event.offset_ps + event.duration_ps
        encloses = (
            following is not None
            and following.offset_ps < end
            and following.offset_ps + following.duration_ps <= end
        )
        if not encloses:
            kept.append(event)
    return kept


def _known_layers(path: Path) -> frozenset[str]:
    """Names in the rank's layers.json, two folders up; none for a trace that lies alone."""
    try:
        document = read_document(path.parent.parent / layout.LAYERS_JSON)
    except (OSError, UnreadableFileError):
        return frozenset()
    return frozenset(row.layer for row in read_as(LayersRecord, document).layers)
