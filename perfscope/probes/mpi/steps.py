"""Steps of an MPI program that marks none: cut behind one call of the loop that its collectives make.

A call is known by the place in the program that makes it (the caller and the caller's caller), by its
communicator's origin and, while a loop is looked for, by its bytes. Once LoopFinder has found a period, one
call of it is the mark (mpi_loop.choose_mark): every time it returns, a step begins. A step so has the work in
it that leads to its calls, and behind a call that all ranks wait for all begin together. The steps up to then
are known from their moments and are written, too. What else the program calls in between changes nothing, so
that an occasional output or check does not shift the steps.

Only where the mark has not been seen for long, another loop is looked for, and taken only when it has turned
more often than there were steps: a loop that reads files gives way to the one that computes, but a validation
between epochs does not.

`perfscope.step()` and a framework that cuts steps itself come first: then nothing is looked for.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ...vocabulary.frameworks import TRAINERS
from ..step_probe import StepProbe
from .calls import Timing
from .loop import BARE_REPEATS, Loop, LoopFinder, choose_mark
from .table import Method

SILENCE = 64  # collectives other than the mark, besides four periods, after which another loop is looked for
# Turns of a loop where a framework has been imported whose probe cuts steps once it trains: a loop that only
# sets up is not to come first.
BESIDE_TRAINERS = 256
_clock = time.monotonic_ns
_Place = Tuple[Any, ...]


class StepMark:
    """The call behind which a step begins, each time or each n-th time it is made.

    Args:
        call_key: of the call, see `LoopSteps._place`.
        each: n.
        seen: how often it was made since the last step began.
        period: calls of its loop.
    """

    __slots__ = ("code", "each", "offset", "place", "seen", "silence", "turns")

    def __init__(self, call_key: _Place, each: int, seen: int, period: int) -> None:
        self.place = call_key
        self.code, self.offset = call_key[2], call_key[3]
        self.each = each
        self.seen = seen
        self.turns = 0  # steps it has begun
        self.silence = SILENCE + 4 * period

    def begins(self) -> bool:
        """The call was made once more: whether a step begins."""
        self.seen += 1
        if self.seen < self.each:
            return False
        self.seen = 0
        self.turns += 1
        return True


class LoopSteps:
    """Watches collectives, outside windows, too, until another probe cuts the steps.

    Args:
        timing: whose gates are opened and closed here.
        probe: of steps that a program marks itself: it writes those found here.
        owner: name of the one who cuts the steps of this process, "" while none does.
        ours: the probe's name.
        adopted: called when the first loop was found.
        met: called at the first call of MPI that is seen: it can be asked now.
    """

    def __init__(
        self,
        timing: Timing,
        probe: Callable[[], StepProbe],
        owner: Callable[[], str],
        ours: str,
        adopted: Callable[[], None],
        met: Callable[[], Any],
    ) -> None:
        self._timing = timing
        self._probe = probe
        self._owner = owner
        self._ours = ours
        self._adopted = adopted
        self._met = met
        self.num_shared = 0  # collectives with other ranks
        self.num_others = 0
        self._thread: Optional[int] = None
        self._mark: Optional[StepMark] = None
        self._rival: Optional[StepMark] = None  # of another loop, while ours is silent
        self._silent = 0  # collectives since our mark was seen
        self._silence = 0  # so many are borne
        self._started: Optional[int] = None  # the step that we have begun, as the probe has it
        self._search()
        timing.watch = self.watch
        timing.count = self.count
        timing.shared.on = timing.others.on = True

    def _search(self) -> None:
        """Look for a loop from here on: calls distinguished by their bytes, and, more patiently, without."""
        self._finders: List[LoopFinder] = [LoopFinder(), LoopFinder(BARE_REPEATS)]
        self._numbers: Tuple[Dict[_Place, int], Dict[_Place, int]] = ({}, {})
        self._places: Tuple[List[_Place], List[_Place]] = ([], [])
        self._wide: Tuple[List[bool], List[bool]] = ([], [])

    def stop(self) -> None:
        """Look at nothing any more, outside windows."""
        self._timing.shared.on = self._timing.others.on = False
        self._finders = []

    def count(self) -> None:
        """Another call of MPI; the first between two collectives is enough to know."""
        if not self.num_others:
            self._met()
        self.num_others += 1
        self._timing.others.on = False

    def watch(self, name: str, comm: Any, method: Method, args: tuple, kwargs: dict, frame: Any) -> None:
        """A collective that `frame` made has returned."""
        mark = self._mark
        elsewhere = mark is not None and self._rival is None and frame.f_lasti != mark.offset
        if elsewhere and self._silent < self._silence:  # most calls end here
            self._silent += 1
            return
        try:
            self._watch(name, comm, method, args, kwargs, frame)
        except Exception as error:  # noqa: BLE001 - the boundary: the call goes on
            self._timing.fault("loop", error)
            if self._timing.off:
                self.stop()

    def _watch(self, name: str, comm: Any, method: Method, args: tuple, kwargs: dict, frame: Any) -> None:
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        elif thread != self._thread:
            return
        if self._is_at(self._mark, name, comm, frame):
            self._marked()
            return
        if self._owner() not in ("", self._ours) or self._is_marked_by_hand():
            self.stop()
        elif self._rival is not None:
            if self._is_at(self._rival, name, comm, frame):
                self._rival_marked()
        elif self._mark is not None and self._silent < self._silence:
            self._silent += 1
        else:
            self._look(name, comm, method, args, kwargs, frame)

    def _is_at(self, mark: Optional[StepMark], name: str, comm: Any, frame: Any) -> bool:
        if mark is None or frame.f_lasti != mark.offset or id(frame.f_code) != mark.code:
            return False
        return self._place(name, comm, frame) == mark.place

    def _place(self, name: str, comm: Any, frame: Any) -> _Place:
        outer = frame.f_back
        family = self._timing.place_of(comm).family
        here = (name, family, id(frame.f_code), frame.f_lasti)
        return here if outer is None else (*here, id(outer.f_code), outer.f_lasti)

    # -- looking for a loop -----------------------------------------------------------------------------

    def _look(self, name: str, comm: Any, method: Method, args: tuple, kwargs: dict, frame: Any) -> None:
        timing = self._timing
        comm_place = timing.place_of(comm)
        if not self._finders or comm_place.size < 2:
            return
        if not self.num_shared:
            self._met()
        self.num_shared += 1
        where = self._place(name, comm, frame)
        rows = timing.rows(name, method, timing.call(comm, comm_place, method, args, kwargs))
        size = max((row.in_bytes or 0 for row in rows), default=0)
        now = _clock()
        if any(trainer.value in sys.modules for trainer in TRAINERS):
            for finder in self._finders:
                finder.require(BESIDE_TRAINERS)
        for which, key in enumerate(((*where, size), where)):
            numbers, steps_at, wide = self._numbers[which], self._places[which], self._wide[which]
            symbol = numbers.setdefault(key, len(numbers))
            if symbol == len(steps_at):
                steps_at.append(where)
                wide.append(comm_place.size >= timing.mpi.COMM_WORLD.Get_size())
            loop = self._finders[which].add(symbol, now, self.num_others)
            if loop is not None:
                self._found(loop, which)
                return
        timing.others.on = self._mark is None
        if self._finders[0].exhausted:
            self._in_vain()

    def _in_vain(self) -> None:
        if self._mark is None:
            self.stop()
        else:
            self._silent, self._silence = 0, 4 * self._silence  # look again, but ever more rarely
            self._search()

    def _found(self, loop: Loop, which: int) -> None:
        """A loop: its mark, and when it was made, from the first turn on."""
        finder, names = self._finders[which], self._places[which]
        symbols, moments = finder.symbols, finder.moments
        block = symbols[loop.first : loop.first + loop.period]
        numbers: Dict[_Place, int] = {}
        symbols_ = [numbers.setdefault(names[symbol], len(numbers)) for symbol in block]
        at, each = choose_mark(symbols_, [self._wide[which][symbol] for symbol in block])
        marked = names[block[at]]
        later = range(loop.first + at, len(symbols))
        times_ = [moments[index] for index in later if names[symbols[index]] == marked]
        mark = StepMark(marked, each, (len(times_) - 1) % each, loop.period)
        self._search()
        if self._mark is not None:
            self._rival = mark
            mark.turns = len(times_) // each
        elif self._probe().promote() is None:
            self.stop()
        else:
            self._adopted()
            self._take(mark, times_[::each])

    def _take(self, mark: StepMark, starts: List[int]) -> None:
        """From now on this mark begins steps."""
        self._mark, self._rival = mark, None
        self._silent, self._silence = 0, mark.silence
        self._timing.others.on = False
        probe = self._probe()
        probe.take_over(starts)
        self._started = probe.started

    # -- steps ------------------------------------------------------------------------------------------

    def _marked(self) -> None:
        mark, self._silent = self._mark, 0
        if self._rival is not None or self._finders[0].symbols:
            self._rival = None
            self._search()
        if mark is None or not mark.begins():
            return
        if self._owner() != self._ours or self._is_marked_by_hand():
            self.stop()
            return
        probe = self._probe()
        probe.guarded("step", probe.boundary)
        self._started = probe.started

    def _rival_marked(self) -> None:
        rival = self._rival
        if rival is not None and rival.begins() and rival.turns > self._probe().index:
            self._take(rival, [_clock()])

    def _is_marked_by_hand(self) -> bool:
        """Whether `perfscope.step()` was called: the probe is in a step, or at a place in it, not ours."""
        return self._owner() == self._ours and self._probe().started != self._started
