"""What the probes of one process share: its place in the run, who cuts its steps, what calls are recorded.

Several frameworks may live in one process (Keras on JAX, torch with mpi4py). One of them cuts the steps: the
first that proves to train. The others add what they know: calls of communication, facts for rank.json.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ..rundir import last_word, layout
from ..vocabulary.figures import Figure
from ..vocabulary.notes import NoteKind
from . import sampler_start
from .activities import Activities
from .calls import CallLog
from .files import say
from .guard import Guard
from .layer_counters import LayerCounters
from .phases import Phases
from .ranks import Identity, identify
from .recorder import Recorder
from .usage import process_started

MAX_LABELS, LONGEST_LABEL = 64, 500
_clock = time.monotonic_ns


@functools.lru_cache(maxsize=None)
def current() -> "Process":
    """This process, made at the first call."""
    config = json.loads(os.environ.get(layout.ENV_CONFIG) or "{}")
    process = Process(os.environ[layout.ENV_RUN_DIR], config)
    process.activities.watch()  # from here on, whenever it proves to train
    os.register_at_fork(after_in_child=process.reset)
    return process


class Process:
    """One process.

    Args:
        run_dir: absolute path of the run directory.
        config: PERFSCOPE_CONFIG, parsed.

    Attributes:
        recorder: the rank's files; None until `open`: a process that does not train leaves no trace.
        owner: name of the framework that cuts the steps, "" until one does.
        calls: records communication while a window is open, where the framework's trace does not.
        counters: counts what layers do to the processor while a window is open.
        phases: what the program and its frameworks mark by name.
        activities: what its training thread does besides training.
        lenders: probes (FrameworkProbe) that lend their profiler to steps marked by the program.
        labels: of the run, as the program gives them.
        reported_samples: of each forward pass, by the program; None: they are counted.
        cutter: the probe (FrameworkProbe) that cuts the steps; None: none does yet.
    """

    def __init__(self, run_dir: str, config: Dict[str, Any]) -> None:
        self.run_dir = run_dir
        self.config = config
        self._identities: List[Callable[[], Optional[Identity]]] = []
        self._resets: List[Callable[[], None]] = []
        self.counters = LayerCounters()
        self.phases = Phases(self._training_thread, self.missing, self._phase_fault)
        self.activities = Activities(self.phases)
        self.lenders: List[Any] = []
        self._start_afresh()

    def _start_afresh(self) -> None:
        self.recorder: Optional[Recorder] = None
        self.owner = ""
        self.cutter: Any = None
        self.labels: Dict[str, str] = {}
        self.reported_samples: Optional[int] = None
        self._unwritable = False
        self.calls = CallLog()
        self.guard = Guard()
        self._opening = False
        self._finishers: List[Callable[[], Dict[str, Any]]] = []

    @property
    def broken(self) -> bool:
        """Nothing can be written: every probe is to stay silent."""
        return self._unwritable or (self.recorder is not None and self.recorder.ended)

    def reset(self) -> None:
        """In a forked child: unpromoted, and nothing of the parent's."""
        if self.recorder is not None:
            self.recorder.close()
        self.counters.abandon()
        self.activities.reset()
        self.phases.reset()
        self._start_afresh()
        for reset in self._resets:
            reset()

    def on_reset(self, reset: Callable[[], None]) -> None:
        self._resets.append(reset)

    def lend(self, probe: Any) -> None:
        """`probe` (FrameworkProbe): the program may compute with its framework while it marks its steps."""
        self.lenders.append(probe)

    def on_identity(self, ask: Callable[[], Optional[Identity]]) -> None:
        """`ask` tells which rank this process is, or None; asked before the launchers' variables."""
        self._identities.append(ask)

    def on_finish(self, finish: Callable[[], Dict[str, Any]]) -> None:
        """`finish` is called once, when the process ends; what it returns goes into rank.json."""
        self._finishers.append(finish)

    def open(self) -> Optional[Recorder]:
        """This process trains: find its rank, open its files, start the sampler. Once; later calls are free.

        Returns:
            None while another call is at it (a hook fired inside).

        Raises:
            OSError: the run directory cannot be written; `broken` is set.
        """
        if self.recorder is not None or self._opening or self.broken:
            return self.recorder
        self._opening = True
        try:
            recorder = Recorder(self.run_dir, self._identify())
        except OSError as error:
            self._unwritable = True  # there is no point in trying at every step
            say(
                "record",
                "this process is not recorded: %s cannot be written: %s" % (self.run_dir, error.strerror),
            )
            last_word.send(self.run_dir, error)
            raise
        finally:
            self._opening = False
        self.recorder = recorder
        self.guard.connect(functools.partial(recorder.append, layout.ERRORS_JSONL))
        recorder.anchor()
        recorder.meta["labels"] = self.labels
        self.phases.open(recorder)
        self.activities.marks.open(recorder, self.config.get("hang_after_s"))
        recorder.save_meta(life={"started_ns": process_started()})
        try:
            note = sampler_start.start(self.run_dir, self.config, recorder.meta["local_rank"])
            if note is not None:
                self.note(note, NoteKind.NO_COUNTERS)
        except Exception as error:  # noqa: BLE001 - the boundary: steps are worth having without counters
            self.guard.fault("sampler", error)
        atexit.register(self._at_exit, os.getpid())
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # its forked children leave by os._exit, past atexit
            multiprocessing.Finalize(None, self._at_exit, (os.getpid(),), exitpriority=0)
        return recorder

    def own_steps(self, name: str) -> bool:
        """Whether the framework `name` cuts the steps of this process: the first that asks does."""
        if not self.owner:
            self.owner = name
            if self.recorder is not None:
                self.recorder.meta["main_tid"] = threading.get_native_id()
        return self.owner == name

    def label(self, labels: Dict[str, str]) -> None:
        """Labels of the run, in addition to those given before; the first MAX_LABELS are kept."""
        for name, value in labels.items():
            if name in self.labels or len(self.labels) < MAX_LABELS:
                self.labels[name[:LONGEST_LABEL]] = value[:LONGEST_LABEL]
        if self.recorder is not None:
            self.recorder.save_meta()

    def tell_samples(self, count: Any) -> None:
        """Samples of each forward pass from now on; anything but a number of them: they are counted."""
        self.reported_samples = count if isinstance(count, int) and count >= 0 else None

    def note(self, text: str, kind: NoteKind = NoteKind.OTHER) -> None:
        """One line for the reader of this run, once; kept with the rank."""
        if self.recorder is not None:
            self.recorder.note(text, kind)

    def missing(self, figure: Figure, what: str, reason: str, *, is_update: bool = False) -> None:
        """A figure that this framework cannot give, in words, and why; reports print it in its place.

        The first reason given stands; `is_update`: the last.
        """
        if self.recorder is not None:
            entries = self.recorder.meta.setdefault("missing", [])
            existing = next((entry for entry in entries if entry["what"] == what), None)
            if existing is None:
                entries.append({"figure": figure.value, "what": what, "reason": reason})
            elif is_update:
                existing["reason"] = reason

    def _phase_fault(self, where: str, error: Exception) -> bool:
        return self.guard.fault(where, error) or self.broken

    def _training_thread(self) -> Optional[int]:
        """Its identifier; None: nothing has trained yet."""
        return None if self.cutter is None else self.cutter.thread_ident

    def _identify(self) -> Identity:
        for ask in self._identities:
            try:
                identity_ = ask()
            except Exception as error:  # noqa: BLE001 - the boundary: the launcher's variables are left
                self.guard.fault("identity", error)
                continue
            if identity_ is not None and identity_.rank is not None:
                default = identify()
                return identity_._replace(
                    local_rank=identity_.local_rank
                    if identity_.local_rank is not None
                    else default.local_rank,
                    world_size=identity_.world_size
                    if identity_.world_size is not None
                    else default.world_size,
                )
        return identify()

    def _told_by(self, finish: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        try:
            return finish()
        except Exception as error:  # noqa: BLE001 - the boundary: the others still have their say
            self.guard.fault("finish", error)
            return {}

    def _at_exit(self, pid: int) -> None:
        try:
            self.finish(pid)
        except BaseException as error:  # noqa: BLE001 - the exit code is the training's own, on Ctrl-C, too
            self.guard.fault("finish", error)

    def finish(self, pid: int) -> None:
        """Write what is left. Also for probes that were switched off: what they have is worth writing."""
        recorder = self.recorder
        if recorder is None or pid != os.getpid() or recorder.meta["finished"]:
            return
        facts: Dict[str, Any] = {}
        for finish in self._finishers:
            facts.update(self._told_by(finish))
        now = _clock()
        self.activities.trains(now)
        self.phases.finish(now)
        life = dict(recorder.meta["life"], ended_ns=now, **self.activities.facts())
        recorder.finish(**dict(facts, life=life))
