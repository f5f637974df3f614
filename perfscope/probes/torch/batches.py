"""How many samples and tokens a training step is given on this rank.

Samples are, in this order: the loader's, where one feeds the loop (`loaders.py`); the micro-batches of a
pipeline stage together; the dimension of the model's first input that its targets share; its first dimension.
"""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..frames import around
from .layers import parts
from .loaders import LoaderBatch, Loaders, Shape, shape_of, tensors_of

LOADER, TARGETS, LAYERS, INPUT, PROGRAM = "loader", "targets", "layers", "input", "program"
_HOOK = "perfscope batch"  # our key in torch's table of global forward pre-hooks
_MAX_NODES = 64  # of the loss's graph that are looked at for a target
_MAX_TRIES = 4  # searches for the axis of samples before it is taken as unknown
_MAX_FRAMES = 30
_CHANNELS = {1, 3, 4}  # of images
_PIPELINES = "torch.distributed.pipelining.stage"
_TRIALS = ("_prepare_forward_infra", "_forward_metadata_inference", "_shape_inference")
_TARGET = "_saved_target"  # of the graph nodes of torch's loss functions

# Samples, tokens, whether they are of the batch of the step before, micro-batches.
Counts = Tuple[Optional[int], Optional[int], bool, int]


class Batches:
    """Counts what root forwards are given.

    Args:
        failed: called with an error of ours; the training goes on.
        reported: gives the samples of a forward pass that the program reports; None: it reports none.
    """

    def __init__(
        self, failed: Callable[[Exception], None], reported: Callable[[], Optional[int]] = lambda: None
    ) -> None:
        self._reported = reported
        self.loaders = Loaders(failed)
        self._hooks: Optional[Dict[Any, Any]] = None
        self.reset()

    def reset(self) -> None:
        """Start afresh: at arming, and in every forked child."""
        self.settled()
        self.loaders.reset()
        self._current: Optional[LoaderBatch] = None
        self._step = -1
        self._from_loader = False  # this step's samples
        self._repeated = False  # a loader fed the step before, and has given none of its own to this one
        self._counts: Dict[str, int] = {}  # where samples were known from -> forward passes
        self.axis = 0  # of the input along which samples lie
        self._axis_from = INPUT
        self._open: Optional[Tuple[Shape, int]] = None  # input whose axis is not settled, and its samples
        self._seen: Optional[int] = None  # the axis by what layers were given
        self._tries = 0  # searches for that axis that found none
        self._hooked = False  # the training has had hooks on saved tensors: looking at these would run them
        self._embeds: Dict[int, Tuple[Any, bool]] = {}  # id of a root -> the root, whether it embeds tokens
        self._inputs: List[Any] = []  # weak references to what this step has counted
        self.pipeline: Optional[List[int]] = None  # ranks that share a batch as its stages

    # -- loaders --------------------------------------------------------------------------------

    def finish(self, recorder: Any) -> None:
        """The process ends: `recorder` (None: there is none) writes what is left."""
        self.settled()
        if recorder is not None:
            self.loaders.asks.flush(recorder)

    def install(self, torch: Any) -> None:
        """Watch what loaders draw, and whether saved tensors have hooks."""
        self._torch = torch
        self._hooks = torch.nn.modules.module._global_forward_pre_hooks
        self._watch_hooks(getattr(torch.autograd.graph, "saved_tensors_hooks", None))
        kind = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
        original = getattr(kind, "_next_index", None)
        if kind is None or original is None:
            return
        loaders = self.loaders

        @around(original)
        def _next_index(iterator: Any) -> Any:
            index = original(iterator)
            loaders.drew(iterator, index)
            return index

        kind._next_index = _next_index

    def _watch_hooks(self, kind: Any) -> None:
        """Checkpoints compute a forward pass again for each look at a tensor that they have saved."""
        if kind is None:
            return
        original = kind.__enter__

        @around(original)
        def __enter__(context: Any) -> Any:
            self._hooked = True
            return original(context)

        kind.__enter__ = __enter__

    # -- forward passes -------------------------------------------------------------------------

    def forward(
        self, root: Any, args: Any, kwargs: Optional[Dict[str, Any]], step: int, again: bool
    ) -> Counts:
        """The root is about to run forward in step number `step`.

        Args:
            again: inside an update: of an input that this step has counted, nothing more is counted.

        Returns:
            Samples (None: unknown) and tokens (None: the model takes none) that this adds to the step;
            whether they are of a batch that the step before has counted; micro-batches.
        """
        torch = self._torch
        given = args
        tensors = tensors_of(torch, given)
        if not tensors:
            given = _ordered(kwargs)
            tensors = tensors_of(torch, given)
        shapes = [shape_of(torch, tensor) or () for tensor in tensors]
        fresh_step, self._step = step != self._step, step
        if fresh_step:
            self._from_loader, self._inputs = False, []
            self._repeated = self._current is not None
        stage = _pipeline_stage()
        if stage is not None and stage[0] > 0:
            return 0, None, False, 0  # the first micro-batch has been counted for all
        num_parts = 1 if stage is None else stage[1]
        if stage is not None:
            self.pipeline = self.pipeline or _ranks_of(torch, stage[2])
        samples = self._of_loader(tensors, shapes, fresh_step, stage is not None)
        if samples is None:
            if again and any(ref() is tensor for ref in self._inputs for tensor in tensors[:1]):
                return 0, None, False, 1
            if given and self._lists_images(given[0]):
                samples = self._of_list(given[0])
            else:
                samples = self._of_input(root, tensors, shapes)
            samples = None if samples is None else samples * num_parts
        self._inputs += [weakref.ref(tensor) for tensor in tensors[:1]]
        tokens = self._tokens(root, tensors, shapes, num_parts) if samples != 0 else None
        reported = self._reported()
        if reported is not None:
            self.settled()  # what the loss would correct is not counted
            self._count(PROGRAM)
            samples = reported
        return samples, tokens, self._repeated, num_parts

    def _of_loader(
        self, tensors: List[Any], shapes: List[Shape], fresh_step: bool, takes_all: bool
    ) -> Optional[int]:
        """Samples of loaders' batches that this pass begins to use; None: no loader feeds it."""
        current, fresh = self._current, self.loaders.fresh()
        same = next((batch for batch in fresh if batch.holds(tensors)), None)
        if same is not None:
            return self._take(same, same.size)
        if current is not None and 0 < current.counted < current.size:  # in slices
            part = current.part(shapes)
            if part is not None:
                self._repeated = False
                return self._use(current, part)
        for batch in fresh:
            part = batch.size if takes_all else batch.part(shapes)
            if part is not None:
                return self._take(batch, part)
        if fresh:  # nothing tells them apart: the training has changed their layout
            for batch in fresh:
                self._take(batch, batch.size)
            return sum(batch.size for batch in fresh)
        if not fresh_step:
            return 0 if self._from_loader else None  # another pass over the same batch
        part = None if current is None else current.part(shapes)
        if current is None or part is None:
            return None
        current.counted = 0  # trained on once more
        return self._use(current, part)

    def _take(self, batch: LoaderBatch, part: int) -> int:
        self.loaders.take(batch)
        self._current, self._repeated = batch, False
        return self._use(batch, part)

    def _use(self, batch: LoaderBatch, part: int) -> int:
        part = min(part, batch.size - batch.counted)
        batch.counted += part
        self._from_loader = True
        self._count(LOADER)
        return part

    def _lists_images(self, given: Any) -> bool:
        """A list of tensors of three dimensions: torchvision's detection models take `[C, H, W]` images."""
        if not isinstance(given, list) or not given:
            return False
        shapes = [shape_of(self._torch, item) for item in given]
        return all(shape is not None and len(shape) == 3 for shape in shapes)

    def _of_list(self, images: List[Any]) -> Optional[int]:
        """Its length; None where the first dimensions are not channels: these may be several inputs."""
        channels = {(shape_of(self._torch, image) or (0,))[0] for image in images}
        if len(channels) > 1 or not channels <= _CHANNELS:
            return None
        self._count(INPUT)
        return len(images)

    def _of_input(self, root: Any, tensors: List[Any], shapes: List[Shape]) -> Optional[int]:
        first = next((number for number, shape in enumerate(shapes) if shape), None)
        if first is None:
            return None
        shape = shapes[first]
        mapped = _mapped(self._torch, tensors[first])
        if mapped is not None:  # one sample of these, or several that share parameters that are mapped, too
            self._count(INPUT)
            return mapped if shape[0] == 1 else None
        if len(shape) == 1 and self._are_tokens(root, tensors[first]):
            return None  # packed sequences: their tokens, or one token of each sample
        samples = shape[self.axis] if self.axis < len(shape) else shape[0]
        searched = self._open is not None or self._tries >= _MAX_TRIES
        if self._axis_from == INPUT and len(shape) > 1 and shape[0] != shape[1] and not searched:
            self._open = (shape, samples)
            self._watch_layers(root)
            self._layer_given(root, (tensors[first],))  # its own call has begun: no hook sees it any more
        self._count(self._axis_from)
        return samples

    def _count(self, source: str) -> None:
        self._counts[source] = self._counts.get(source, 0) + 1

    def _embeds_tokens(self, root: Any) -> bool:
        cached = self._embeds.get(id(root))
        if cached is None or cached[0]() is not root:
            cached = self._embeds[id(root)] = (weakref.ref(root), _embeds(root))
        return cached[1]

    def _are_tokens(self, root: Any, tensor: Any) -> bool:
        with self._torch._C.DisableTorchFunction():
            integers = tensor.dtype in (self._torch.int64, self._torch.int32)
        return integers and self._embeds_tokens(root)

    def _tokens(self, root: Any, tensors: List[Any], shapes: List[Shape], num_parts: int) -> Optional[int]:
        """Elements of the first integer input [batch, sequence] of a model that has an embedding."""
        if not self._embeds_tokens(root):
            return None
        integers = (self._torch.int64, self._torch.int32)
        with self._torch._C.DisableTorchFunction():  # the training's own subclasses must not see us look
            for tensor, shape in zip(tensors, shapes):  # noqa: B905 - Python 3.8 has no `strict`
                if len(shape) == 2 and tensor.dtype in integers:
                    return shape[0] * shape[1] * num_parts * (_mapped(self._torch, tensor) or 1)
        return None

    # -- along which axis samples lie ------------------------------------------------------------

    def _watch_layers(self, root: Any) -> None:
        """See what layers that have `batch_first=False` are given in this forward pass, once.

        Not where something is compiled: a hook that appears makes it compile again.
        """
        modules = list(parts(root))
        attributes = [object.__getattribute__(module, "__dict__") for module in modules]
        compiled = any(
            type(module).__name__ == "OptimizedModule" or attributes_.get("_compiled_call_impl") is not None
            for module, attributes_ in zip(modules, attributes)  # noqa: B905 - Python 3.8 has no `strict`
        )
        looks = any(attributes_.get("batch_first") is False for attributes_ in attributes)
        if looks and not compiled and self._hooks is not None:
            self._hooks[_HOOK] = self._layer_given

    def _layer_given(self, module: Any, args: Any) -> None:
        try:
            if self._open is None or self._seen is not None:
                return
            if object.__getattribute__(module, "__dict__").get("batch_first") is not False:
                return
            shape = shape_of(self._torch, args[0]) if args else None
            first = self._open[0][:2]
            if shape is not None and len(shape) > 2 and shape[:2] in (first, first[::-1]):
                self._seen = 1 if shape[:2] == first else 0
        except Exception as error:  # noqa: BLE001 - the boundary: the forward pass goes on
            self.settled()
            self.loaders._failed(error)

    def settled(self) -> None:
        """No more is to be learned of the axis."""
        self._open = None
        if self._hooks is not None:
            self._hooks.pop(_HOOK, None)

    def backward(self, losses: Any) -> int:
        """A backward pass from `losses` is about to run: their graph may show the targets.

        Returns:
            What the samples counted last are to be corrected by.
        """
        if self._open is None:
            return 0
        shape, samples = self._open
        axis, source = self._seen, LAYERS
        for target in () if self._hooked else _targets(self._torch, losses):
            shared = _shared_axis(shape, target)
            if shared is not None:
                axis, source = shared, TARGETS
                break
        self.settled()
        if axis is None:
            self._tries += 1
            return 0
        self.axis, self._axis_from = axis, source
        self._counts[source] = self._counts.get(source, 0) + self._counts.pop(INPUT, 0)
        return shape[axis] - samples

    def facts(self) -> Dict[str, Any]:
        """For rank.json: where samples are known from."""
        if not self._counts:
            return {}
        source = max(self._counts, key=lambda key_: (key_ == PROGRAM, self._counts[key_]))
        return {"samples": {"from": source, "axis": None if source in (LOADER, PROGRAM) else self.axis}}


def _ordered(kwargs: Optional[Dict[str, Any]]) -> List[Any]:
    """Keyword inputs, those that are a model's main one by their names first."""
    named = kwargs or {}
    main = [named[name] for name in ("input_ids", "pixel_values", "input", "x") if name in named]
    return main + [value for name, value in named.items() if all(value is not argument for argument in main)]


def _embeds(root: Any) -> bool:
    return any(kind.__name__.endswith("Embedding") for module in parts(root) for kind in type(module).__mro__)


def _targets(torch: Any, losses: Any) -> List[Shape]:
    """Shapes of the targets that loss functions in the graph of `losses` have saved."""
    given = tensors_of(torch, losses)
    with torch._C.DisableTorchFunction():
        waiting = [node for node in (tensor.grad_fn for tensor in given) if node is not None]
    shapes: List[Shape] = []
    seen: List[Any] = []
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop(0)
        if any(node is known_node for known_node in seen):
            continue
        seen.append(node)
        if hasattr(node, _TARGET):
            shape = shape_of(torch, getattr(node, _TARGET))
            shapes += [shape] if shape else []
        waiting += [after for after, _ in node.next_functions if after is not None]
    return shapes


def _shared_axis(shape: Shape, target: Shape) -> Optional[int]:
    """Which of the first two axes of an input its targets have, if one alone does; None: unknown."""
    first, second = shape[:2]
    if target[:2] == (first, second) or target[0] == first * second:
        return None  # both
    if target[0] in (first, second):
        return 0 if target[0] == first else 1
    return None


def _mapped(torch: Any, tensor: Any) -> Optional[int]:
    """Over how many slices of `tensor` torch.func.vmap runs the function that has been given it; its shape
    there lacks them. None: it is not mapped.
    """
    functorch: Any = getattr(torch._C, "_functorch", None)
    if not hasattr(functorch, "maybe_get_bdim"):
        return None
    sizes: List[int] = []
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            sizes.append(int(inner.shape[functorch.maybe_get_bdim(tensor)]))
        tensor = inner
    return math.prod(sizes) if sizes else None


def _ranks_of(torch: Any, group: Any) -> List[int]:
    dist = torch.distributed
    return list(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))


def is_trial() -> bool:
    """The module about to run gets a trial micro-batch: a pipeline stage learns the shapes it sends."""
    return _called_from(_TRIALS) is not None


def _pipeline_stage() -> Optional[Tuple[int, int, Any]]:
    """Of the pipeline stage whose module is about to run: number of the micro-batch, how many there are,
    group of the stages. None outside torch's pipelines.
    """
    values = _called_from(("forward_one_chunk",))
    if values is None:
        return None
    stage, number = values.get("self"), values.get("fwd_chunk_id")
    chunks = getattr(stage, "chunks", None)
    if not (isinstance(number, int) and isinstance(chunks, int)):
        return None
    return number, chunks, getattr(stage, "group", None)


def _called_from(names: Tuple[str, ...]) -> Optional[Dict[str, Any]]:
    """Variables of the method of a pipeline stage, one of `names`, that is under way; None: none is."""
    if _PIPELINES not in sys.modules:
        return None
    frame: Any = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in names and frame.f_globals.get("__name__") == _PIPELINES:
            local_values: Dict[str, Any] = frame.f_locals
            return local_values
        frame = frame.f_back
    return None
