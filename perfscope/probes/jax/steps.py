"""Which of a program's jitted functions is the training step.

The rule (docs/frameworks.md has it in words): the step is the function that is given its own results back.
An array that a call returned and that the next call of the same function is given is *fed back*; what counts
is the bytes of floating-point arrays, scalars apart, so a random key or a running mean of the loss make no
step. Of several such functions it is the one with the most, and of those within a factor of four (a moving
average of the weights weighs as much as the weights) one that is given a batch as well.

Where nothing is fed back, because the update is made outside jit, it is the function that returns arrays of
its arguments' shapes (gradients), after it has been called often.

It is decided at the third call, when every function of the loop has been seen for a whole round; calls are
kept until then, so no step is lost. Nothing here holds an array: only weak references and sizes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

WATCHED, IDLE, STEP, OPENER = range(4)
CALLS_TO_DECIDE = 2  # complete calls of a function that is given its results back
CALLS_TO_DECIDE_BY_SHAPE = 9  # the update may still be a jitted function that is called less often
CALLS_TO_DECIDE_AT_ALL = 64  # micro-batches of one update that are borne, where there may be some
CALLS_WITHOUT_SIGN = 8  # after which a function is no longer looked at
MAX_CALLS = 24  # the same for one that could be the step, but is not
MAX_LEAVES = 20_000
MAX_FUNCTIONS = 256  # looked at at a time: some programs make a new one in each step
SIMILAR = 4

Path = Tuple[Any, ...]  # keys of jax.tree_util, from (args, kwargs) to a leaf
Leaves = List[Tuple[Path, Any]]
Loose = List[Tuple[Path, Any, Any]]  # arguments that are no state: path, array, the function that made it


class CandidateCall:
    """One call that may turn out to have been a step. CLOCK_MONOTONIC ns."""

    __slots__ = ("drained", "end", "samples", "start")

    def __init__(self, start: int, samples: Dict[Path, Optional[int]], drained: bool) -> None:
        self.start = start
        self.end = 0
        self.drained = drained  # the work queued before it was done
        self.samples = samples  # by argument: what it would be if this were the batch


class Past(NamedTuple):
    """A step that was over, or under way (`end` 0), when the step function was found."""

    start: int
    end: int
    samples: Optional[int]
    drained: bool


class Function:
    """A jitted function, however many times it was wrapped.

    Attributes:
        mapped: it is a pmap: the leading dimension of its arguments counts devices.
        fed: bytes of floating-point arrays it was given back.
        shaped: bytes of such arrays it returned that have shapes of its arguments.
        state: (path, shape, dtype) of what it was given back.
        batch: the argument whose leading dimension is the number of samples.
        witness: an argument that the step before has made: once it is ready, that step is done.
    """

    def __init__(self, name: str, mapped: bool = False) -> None:
        self.name = name
        self.mapped = mapped
        self.role = WATCHED
        self.num_calls = 0
        self.fed = 0
        self.shaped = 0
        self.state: List[Tuple[Path, Tuple[int, ...], str]] = []
        self.batch: Optional[Path] = None
        self.witness: Optional[Path] = None
        self.took: Dict["Function", int] = {}  # bytes that other functions had returned
        self.calls: List[CandidateCall] = []
        self._turn = 0
        self._shapes: "Counter[Any]" = Counter()
        self._gradients: Set[Any] = set()
        self._made: List[int] = []
        self._loose: Dict[int, Any] = {}


class StepFinder:
    """Watches top-level calls of jitted functions until it knows the step.

    Args:
        flatten: tree -> [(path, leaf)], as `jax.tree_util.tree_flatten_with_path`.
        count: (array, mapped) -> samples of this process, were the array a batch.
    """

    def __init__(self, flatten: Callable[[Any], Leaves], count: Callable[[Any, bool], Optional[int]]) -> None:
        self._flatten = flatten
        self._count = count
        self._seen: List[Function] = []
        self._made: Dict[int, Tuple[Any, Function]] = {}  # id of a returned array -> weak reference, by whom
        self.step: Optional[Function] = None
        self.opener: Optional[Function] = None
        self.turn = 0  # calls of the step

    # -- calls ----------------------------------------------------------------------------------------

    def called(self, function: Function, args: Any, kwargs: Any, now: int) -> Optional[Function]:
        """`function`, which is WATCHED, is about to be called.

        Returns:
            The step function when this call decides it; `adopt` is to follow.
        """
        if function._turn != self.turn:  # the step was called in between: not one after the other
            function._turn = self.turn
            function.calls = []
        chosen = self._decide(function)
        if chosen is not function:
            self._look(function, args, kwargs, now)
        return chosen

    def returned(self, function: Function, outputs: Any, now: int) -> None:
        """The call has returned `outputs`."""
        if function.calls:
            function.calls[-1].end = now
        arrays = [leaf for _, leaf in self._flatten(outputs) if is_array(leaf)]
        self._drop_made(function)
        function._made = [id(leaf) for leaf in arrays]
        for leaf in arrays:
            self._made[id(leaf)] = (weakref.ref(leaf), function)
        matched = _matched(function._shapes, arrays)
        function.shaped, function._gradients = sum(map(weight, matched)), {_kind(leaf) for leaf in matched}
        function.num_calls += 1
        signs = function.fed or function.shaped
        enough = function.num_calls >= (MAX_CALLS if signs else CALLS_WITHOUT_SIGN)
        if enough and (self.step is not None or not signs):
            self._forget(function)

    def adopt(self, chosen: Function) -> List[Past]:
        """`chosen` is the step from now on.

        Returns:
            The steps so far, oldest first; the last may still be under way.
        """
        if self.step is not None:
            self.step.role = IDLE
        if self.opener is not None:
            self.opener.role = IDLE
        for other in [
            function
            for function in self._seen
            if function is not chosen and function.fed and self._adds_up(function)
        ]:
            self._forget(other)  # or it would take over: it is called several times between two steps
        self.step, self.opener = chosen, None
        if chosen.batch is None:
            self.opener = next((function for function in self._seen if self._opens(function, chosen)), None)
        past = _history(chosen, self.opener)
        chosen.role = STEP
        if self.opener is not None:
            self.opener.role = OPENER
        for function in (chosen, self.opener):
            if function is not None:
                function.calls = []
        return past

    def candidate(self) -> Optional[Function]:
        """The best there is so far: the program ends before it could be decided."""
        fed = [function_ for function_ in self._seen if function_.fed]
        return self._best([function_ for function_ in fed if not self._adds_up(function_)] or fed)

    # -- deciding -------------------------------------------------------------------------------------

    def _decide(self, function: Function) -> Optional[Function]:
        num = len(function.calls)
        if self.step is not None:
            heavier = function.fed >= SIMILAR * max(1, self.step.fed)
            in_turn = num >= CALLS_TO_DECIDE and 2 * function.fed >= self.step.fed
            return function if function.fed and num and (heavier or in_turn) else None
        patient = num < CALLS_TO_DECIDE_AT_ALL
        best = self._best(
            [
                function_
                for function_ in self._seen
                if function_.fed and not (patient and self._adds_up(function_))
            ]
        )
        if function.fed and num >= CALLS_TO_DECIDE and best is not None:
            return best if num >= CALLS_TO_DECIDE_BY_SHAPE or self._has_batch(best) else None
        if function.shaped and num >= CALLS_TO_DECIDE_BY_SHAPE:
            shaped = [function_ for function_ in self._seen if function_.shaped]
            likely = max(shaped, key=lambda function_: (function_.batch is not None, function_.shaped))
            takers = [
                function_
                for function_ in self._seen
                if function_.took.get(likely) and not likely.took.get(function_)
            ]
            if best is None and patient and takers:
                return None  # what takes the gradients may only add them up
            return best or likely
        return None

    def _has_batch(self, function: Function) -> bool:
        """Whether it is given a batch, or gradients of one by a function that it gives its results."""
        return function.batch is not None or any(self._opens(other, function) for other in self._seen)

    @staticmethod
    def _adds_up(function: Function) -> bool:
        """Whether it takes gradients and gives nothing to who made them: those of micro-batches add up."""
        return function.batch is None and any(
            other.batch is not None and not other.took.get(function) for other in function.took
        )

    @staticmethod
    def _best(candidates: List[Function]) -> Optional[Function]:
        if not candidates:
            return None
        most = max(candidate.fed for candidate in candidates)
        near = [candidate for candidate in candidates if SIMILAR * candidate.fed >= most]
        return max(
            [candidate for candidate in near if candidate.batch] or near, key=lambda candidate: candidate.fed
        )

    def _look(self, function: Function, args: Any, kwargs: Any, now: int) -> None:
        leaves = [(path, leaf) for path, leaf in self._flatten((args, kwargs)) if is_array(leaf)]
        if len(leaves) > MAX_LEAVES:
            self._forget(function)
            return
        self._take_in(function)
        fed, state, loose = 0, [], []
        witness = None
        function.took = {}
        for path, leaf in leaves:
            producer = self._producer(leaf)
            if witness is None and weight(leaf) and (producer is not None or not function.num_calls):
                witness = path, leaf
            if producer is function:
                fed += weight(leaf)
                state.append((path, *_kind(leaf)))
                continue
            if producer is not None:
                function.took[producer] = function.took.get(producer, 0) + size_of(leaf)
            if leaf.shape and not is_key(leaf):
                loose.append((path, leaf, producer))
        function._shapes = Counter(_kind(leaf) for _, leaf in leaves if weight(leaf))
        if fed:
            function.fed, function.state = max(fed, function.fed), state
        self._note(function, loose, witness, now)

    def _take_in(self, function: Function) -> None:
        if function not in self._seen:
            self._seen.append(function)
            if len(self._seen) > MAX_FUNCTIONS:
                self._forget(self._seen[0])

    def _note(self, function: Function, loose: Loose, witness: Any, now: int) -> None:
        """The call as one that may turn out to have been a step."""
        if function.num_calls:
            function.batch = self._batch_of(function, loose)
        function._loose = {id(leaf): _reference(leaf) for _, leaf, _ in loose}
        samples = {path: self._count(leaf, function.mapped) for path, leaf, _ in loose}
        function.witness = witness[0] if witness is not None else None
        function.calls.append(CandidateCall(now, samples, witness is None or is_ready(witness[1])))

    def _batch_of(self, function: Function, loose: Loose) -> Optional[Path]:
        """The first of the arguments that are no state, have no shape of it, and change from call to call.

        Of these, of the leading dimension that most of them have. Where none changes (a benchmark feeds the
        same batch again and again), of those that do not.
        """
        state_kinds = {(shape, dtype) for _, shape, dtype in function.state} or function._gradients
        possible = [
            (path, leaf)
            for path, leaf, producer in loose
            if not self._is_model(leaf, producer) and _kind(leaf) not in state_kinds
        ]
        fresh = [leaf_ for leaf_ in possible if not _is_alive(function._loose.get(id(leaf_[1])), leaf_[1])]
        chosen = fresh or possible
        if not chosen:
            return None
        leading = Counter(leaf.shape[0] for _, leaf in chosen).most_common(1)[0][0]
        return next(path for path, leaf in chosen if leaf.shape[0] == leading)

    @staticmethod
    def _opens(function: Function, chosen: Function) -> bool:
        """Whether a step begins with this function: it makes gradients of the state that `chosen` made."""
        gradients = function.shaped or chosen.took.get(function)
        return bool(function.batch and function.took.get(chosen) and gradients)

    @staticmethod
    def _is_model(leaf: Any, producer: Optional[Function]) -> bool:
        """Weights or gradients: they come from another function, and have shapes of the model."""
        if producer is None or not (producer.fed or producer.shaped):
            return False
        return _kind(leaf) in producer._shapes

    def _producer(self, leaf: Any) -> Optional[Function]:
        entry = self._made.get(id(leaf))
        return entry[1] if entry is not None and entry[0]() is leaf else None

    def _drop_made(self, function: Function) -> None:
        for made in function._made:
            entry = self._made.get(made)
            if entry is not None and entry[1] is function:
                del self._made[made]
        function._made = []

    def _forget(self, function: Function) -> None:
        function.role = IDLE
        function.calls = []
        function._loose = {}
        self._drop_made(function)
        if function in self._seen:
            self._seen.remove(function)


def _history(chosen: Function, opener: Optional[Function]) -> List[Past]:
    """Steps so far: each begins with the opener's first call after the update before, or is one call."""
    if opener is None:
        return [
            Past(call.start, call.end, _samples_of(call, chosen.batch), call.drained) for call in chosen.calls
        ]
    past, openings = [], list(opener.calls)
    for update in chosen.calls:
        mine = [call for call in openings if call.start < update.start]
        openings = openings[len(mine) :]
        first = mine[0] if mine else update
        past.append(Past(first.start, update.end, _sum_of(mine, opener.batch), first.drained))
    if openings:
        past.append(Past(openings[0].start, 0, _sum_of(openings, opener.batch), openings[0].drained))
    return past


def _sum_of(calls: List[CandidateCall], batch: Optional[Path]) -> Optional[int]:
    total = 0
    for call in calls:
        samples = _samples_of(call, batch)
        if samples is None:
            return None
        total += samples
    return total if calls else None


def _samples_of(call: CandidateCall, batch: Optional[Path]) -> Optional[int]:
    return None if batch is None else call.samples.get(batch)


def _matched(arguments: "Counter[Any]", outputs: List[Any]) -> List[Any]:
    """Outputs that are shaped like arguments; none unless their leading dimensions differ.

    A function that augments a batch returns such arrays, too, all of one leading dimension.
    """
    left = Counter(arguments)
    matched = []
    for leaf in outputs:
        if weight(leaf) and left[_kind(leaf)] > 0:
            left[_kind(leaf)] -= 1
            matched.append(leaf)
    return matched if len({leaf.shape[0] for leaf in matched}) > 1 else []


def is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_ready(leaf: Any) -> bool:
    """Whether what computes this array is done; True for arrays that nothing computes (NumPy's)."""
    asked = getattr(leaf, "is_ready", None)
    return True if asked is None or leaf.is_deleted() else bool(asked())


def is_key(leaf: Any) -> bool:
    """A random key of jax.random, typed or raw."""
    name = str(leaf.dtype)
    return name.startswith("key<") or (name == "uint32" and tuple(leaf.shape[-1:]) in ((2,), (4,)))


def size_of(leaf: Any) -> int:
    count = 1
    for extent in leaf.shape:
        count *= int(extent)
    return count * int(getattr(leaf.dtype, "itemsize", 0) or 0)


def weight(leaf: Any) -> int:
    """Bytes that count as a model's state: those of floating-point arrays that are not scalars."""
    floats = str(leaf.dtype).startswith(("float", "bfloat", "complex"))
    return size_of(leaf) if leaf.shape and floats else 0


def _kind(leaf: Any) -> Tuple[Tuple[int, ...], str]:
    return tuple(leaf.shape), str(leaf.dtype)


def _reference(leaf: Any) -> Any:
    try:
        return weakref.ref(leaf)
    except TypeError:
        return None


def _is_alive(reference: Any, leaf: Any) -> bool:
    return reference is not None and reference() is leaf
