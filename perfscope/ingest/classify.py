"""What an event is, from its category and name. One rule per unique name, never per event.

Device kernels: METRICS §1 — communication by the table below, `Memcpy`/`Memset`/`dma` are copies,
every other kernel computes. A kernel without a usable name is `UNKNOWN`: it counts as compute and
is listed as unclassified.

Host spans are either *operators* or *scopes*:

- `OPERATOR`: code of a dispatcher operator, `namespace::name` (`aten::mm`, `mylib::op`). Operators call
  operators; only the outermost one becomes a row, so the union of rows is the time in operators.
- `REGION`: code that runs operators and work of its own: Python autograd Functions and their
  backward (`MyFunction`, `MyFunctionBackward`), `CompiledFunction`, `Torch-Compiled Region`, inductor's
  `graph_*` and `call`. Becomes a row, and so do the operators inside it. One that calls a collective is
  kind host: what it does besides its operators is waiting (timeline.py).
- everything else gives its children a phase, a layer or a collective: backward wrappers, marks,
  optimizer steps and so on. `autograd::engine::evaluate_function: X` only wraps the node `X` and
  becomes no row; the node (`ConvolutionBackward0`, `torch::autograd::AccumulateGrad`) is kind host, and
  the operators inside it are what computes.
"""

from __future__ import annotations

import re
from enum import IntEnum

from perfscope.rundir import layout
from perfscope.vocabulary.host_activity import RUNTIME_CALLS


class DeviceClass(IntEnum):
    """Classes of device spans."""

    COMPUTE = 0
    COMM = 1
    COPY = 2
    ANNOTATION = 3
    UNKNOWN = 4


class HostClass(IntEnum):
    """Classes of host spans. Those below `FIRST_SCOPE` are operators."""

    OPERATOR = 0
    REGION = 1
    WRAPPER = 2  # autograd::engine::evaluate_function: no row
    NODE = 3  # an autograd node
    LAYER = 4
    MODULE = 5  # nn.Module frame of the Python tracer
    STEP = 6
    PROFILER_STEP = 7
    OPTIMIZER = 8
    ZERO_GRAD = 9
    INPUT = 10
    COMM = 11  # a communication library's own span on its thread
    COLLECTIVE_OP = 12  # c10d::*: communication only where nothing closer to it was recorded
    LAUNCH_NOTE = 13  # nccl:* around the launch of a collective
    COMM_PARAMETERS = 14  # record_param_comms: carries sizes and group, no row
    ANNOTATION = 15
    OTHER = 16
    GROUP = 17  # names the process group of the call inside: no row
    SOURCE = 18  # says who sent what was just received: no row
    FUNCTIONAL = 19  # _c10d_functional::*: starts a c10d call, or waits for one: no work of its own
    CLOSURE = 20  # what Optimizer.step(closure) calls: no work of the optimizer's
    UNIT = 21  # FSDP2's `FSDP::pre_forward (<module>)`: gathers, or reduces the gradients of, that module
    RUNTIME = 22  # a call of the device's runtime that may block the host
    FRAME = 23  # a Python function that runs long
    INFERENCE_STEP = 24  # a range around one step of an inference server
    WAIT = 25  # the thread waits for communication


FIRST_SCOPE = HostClass.WRAPPER
COMM_CLASSES = (
    HostClass.COMM,
    HostClass.COLLECTIVE_OP,
    HostClass.LAUNCH_NOTE,
    HostClass.COMM_PARAMETERS,
    HostClass.GROUP,
)

# Communication kernels: (prefix of the name, where it comes from). Case matters.
COMM_PREFIXES = (
    ("nccl", "NCCL and RCCL up to 2.17: ncclKernel_*; later ncclDevKernel_*"),
    ("rccl", "RCCL"),
    ("hccl", "Huawei and Habana collectives"),
    ("msccl", "MSCCL and MSCCL++"),
    ("deep_ep", "DeepEP expert parallelism"),
    ("nvshmem", "NVSHMEM"),
    ("multimem_all_reduce", "PyTorch symmetric memory"),
    ("cross_device_reduce", "vLLM and SGLang custom all-reduce"),
)
# The same behind `void `, template arguments or a namespace of a demangled name.
_COMM_KERNEL = re.compile(
    r"^(?:void\s+)?(?:[\w:()\s]*::)?(?:"
    + "|".join(prefix for prefix, _ in COMM_PREFIXES)
    + r")|::ep::|\bdeep_ep::"
)
# DeepEP counts on the device itself which tokens go where before it sends any.
_LOCAL_KERNEL = re.compile(r"\bget_dispatch_layout\b")
_COPY = re.compile(r"^(?:Memcpy|Memset|dma)")
_NAMELESS = frozenset({"", "INVALID", "unknown", "Unknown", "<unknown>", "Unknown kernel"})

# Categories of device spans; the bool: kernels, to be distinguished by name.
DEVICE_CATEGORIES = {
    "kernel": True,
    "Kernel": True,
    "concurrent_kernel": True,
    "gpu_memcpy": False,
    "gpu_memset": False,
    "Memcpy": False,
    "Memset": False,
    "mtia_ccp_events": True,
}
_DEVICE_CATEGORY = re.compile(
    r"(?:^|_)(?:memcpy|memset|kernels?)$", re.IGNORECASE
)  # other vendors' (gcu_memcpy)
DEVICE_ANNOTATIONS = frozenset({"gpu_user_annotation"})
RUNTIME_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "mtia_runtime", "glow_runtime"}
    | {"privateuse1_runtime", "privateuse1_driver"}
)
_RUNTIME_CATEGORY = re.compile(r"(?:^|_)(?:runtime|driver)$", re.IGNORECASE)  # other vendors'
# Ranges with counters of the device: their times are not those of its work.
PROFILER_RANGES = "cuda_profiler_range"
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator", "operator"})
ANNOTATION_CATEGORIES = frozenset({"user_annotation"})
FRAME_CATEGORY = "python_function"
# Readable, and of no use to a timeline.
INSTANTS = "cpu_instant_event"  # among them the allocator's
IGNORED_CATEGORIES = frozenset(
    {"ac2g", "fwdbwd", "async_cpu_to_gpu", "Trace", "overhead", "cuda_sync", "cuda_event"}
    | {
        INSTANTS,
        "python_function",
        "async_gpu",
        "forward_backward",
        "mtia_counters",
        "collective_comm",
        PROFILER_RANGES,
    }
)

# The last is FSDP2's: no work of its own, but it waits for collectives.
_NODE = re.compile(
    r"^(?:\w*Backward\d+|torch::autograd::\w+|struct torch::autograd::\w+"
    r"|RegisterPostBackwardFunctionBackward)$"
)
_REGION = re.compile(r"^(?:[A-Za-z_]\w*|Torch-Compiled Region.*|## Call CompiledFxGraph.*|graph_\w+.*|call)$")
ACCUMULATE = "torch::autograd::AccumulateGrad"
BACKWARD_WRAPPER = "autograd::engine::evaluate_function:"
_BACKENDS = ("gloo:", "mpi:", "ucc:")
MODULE_PREFIX = "nn.Module: "
_NOT_OPERATORS = ("profiler::", "torch::autograd::", "autograd::engine::")


_UNIT_RANGES = ("all_gather", "pre_", "post_", "backward_prefetch", "forward_prefetch")
_UNIT = re.compile(r"FSDP::(\w+)(?: \((.*)\)| for (.+)|)")
_ROOT_UNIT = ("", "None", None)  # what FSDP2 calls the module that `fully_shard` was called on last


# Ranges that inference servers mark their steps with: vLLM's `execute_context_1(512)_generation_3(3)`,
# SGLang's `step[EXTEND bs=1 toks=512]`.
_INFERENCE_STEP = re.compile(
    r"execute_\w+(?:\(\d+\)\w*)*|(?:gpu_model_runner: |model_executor: )?execute_model\b.*|step\[.+\]"
)


# NVTX ranges by the names that trainings customarily give them. A step that has no number gets one.
NVTX_CATEGORY = "nvtx"
_STEP_NAME = r"(?:train(?:ing)?[ _])?(?:iteration|iter|step)"
UNNUMBERED_STEP = re.compile(_STEP_NAME, re.IGNORECASE)
_NVTX_STEP = re.compile(_STEP_NAME + r"[\s_#:=.-]*(\d{1,9})", re.IGNORECASE)
_NVTX = (
    (_NVTX_STEP, HostClass.PROFILER_STEP),
    (re.compile(r"(?:forward|fwd)(?:[ _-](?:pass|step|compute))?", re.IGNORECASE), HostClass.CLOSURE),
    (re.compile(r"(?:backward|bwd)(?:[ _-](?:pass|step|compute))?", re.IGNORECASE), HostClass.NODE),
    (re.compile(r"(?:optimizer|optim|opt)(?:[ ._-]step)?", re.IGNORECASE), HostClass.OPTIMIZER),
    (re.compile(r"zero[_ ]grad", re.IGNORECASE), HostClass.ZERO_GRAD),
    (
        re.compile(r"(?:load|next|get)[ _](?:data|batch)|data[ _]?load(?:er|ing)?", re.IGNORECASE),
        HostClass.INPUT,
    ),
)


def is_runtime(category: str) -> bool:
    """Whether spans of the category are calls of a device's runtime or driver."""
    return category in RUNTIME_CATEGORIES or bool(_RUNTIME_CATEGORY.search(category))


def is_device(category: str) -> bool:
    """Whether spans of the category are work of a device, by its name."""
    return category in DEVICE_CATEGORIES or bool(_DEVICE_CATEGORY.search(category))


def is_kernel(category: str) -> bool:
    """Whether work of a device of this category may be a kernel: its name says which."""
    return DEVICE_CATEGORIES.get(category, bool(re.search("kernels?$", category, re.IGNORECASE)))


def device_class(category: str, name: str) -> DeviceClass:
    """The class of a device span; an unknown category with a device and stream is `UNKNOWN`."""
    if category in DEVICE_ANNOTATIONS:
        return DeviceClass.ANNOTATION
    if (is_device(category) and not is_kernel(category)) or _COPY.match(name):
        return DeviceClass.COPY
    if name in _NAMELESS:
        return DeviceClass.UNKNOWN
    if _COMM_KERNEL.search(name) and not _LOCAL_KERNEL.search(name):
        return DeviceClass.COMM
    return DeviceClass.COMPUTE if is_device(category) else DeviceClass.UNKNOWN


def host_class(category: str, name: str) -> HostClass:
    """The class of a host span of any category."""
    if category == FRAME_CATEGORY:
        return HostClass.MODULE if name.startswith(MODULE_PREFIX) else HostClass.FRAME
    if is_runtime(category):
        return HostClass.RUNTIME
    for prefix, host_kind in _PREFIXES:
        if name.startswith(prefix):
            return host_kind
    if name in _EXACT:
        return _EXACT[name]
    if category == NVTX_CATEGORY:
        return next((code for pattern, code in _NVTX if pattern.fullmatch(name)), HostClass.ANNOTATION)
    if category in ANNOTATION_CATEGORIES and _INFERENCE_STEP.fullmatch(name):
        return HostClass.INFERENCE_STEP
    if category in ANNOTATION_CATEGORIES:
        compiled = name.startswith(("Torch-Compiled Region", "## Call Compiled"))
        return HostClass.REGION if compiled else HostClass.ANNOTATION
    if category in OPERATOR_CATEGORIES:
        return operator_class(name)
    return HostClass.OTHER


_EXACT = {
    layout.MARK_INPUT: HostClass.INPUT,
    layout.MARK_CLOSURE: HostClass.CLOSURE,
    layout.MARK_WAIT: HostClass.WAIT,
    "record_param_comms": HostClass.COMM_PARAMETERS,
}
_PREFIXES = (
    (layout.MARK_LAYER, HostClass.LAYER),
    (layout.MARK_STEP, HostClass.STEP),
    (layout.MARK_PHASE, HostClass.ANNOTATION),
    (layout.MARK_GROUP, HostClass.GROUP),
    (layout.MARK_SOURCE, HostClass.SOURCE),
    (layout.PROFILER_STEP, HostClass.PROFILER_STEP),
    ("Optimizer.step#", HostClass.OPTIMIZER),
    ("Optimizer.zero_grad#", HostClass.ZERO_GRAD),
    ("enumerate(DataLoader)#", HostClass.INPUT),
    *((backend, HostClass.COMM) for backend in _BACKENDS),
    ("c10d::", HostClass.COLLECTIVE_OP),
    ("_c10d_functional", HostClass.FUNCTIONAL),
    ("nccl:", HostClass.LAUNCH_NOTE),
    *((f"FSDP::{what}", HostClass.UNIT) for what in _UNIT_RANGES),
    (BACKWARD_WRAPPER, HostClass.WRAPPER),
)


def operator_class(name: str) -> HostClass:
    """The class of a span that the dispatcher or autograd recorded."""
    if _NODE.match(name):
        return HostClass.NODE
    if "::" in name:
        return HostClass.OTHER if name.startswith(_NOT_OPERATORS) else HostClass.OPERATOR
    return HostClass.REGION if _REGION.match(name) else HostClass.ANNOTATION


def mark_text(kind: HostClass, name: str) -> str:
    """What a row of a mark is called: the layer's or module's name instead of the mark's."""
    if kind is HostClass.LAYER:
        return name[len(layout.MARK_LAYER) :]
    if kind is HostClass.MODULE:
        return name[len(MODULE_PREFIX) :]
    return name


def unit_of(name: str) -> tuple[str | None, str]:
    """(module, what is done) of a range of FSDP2, such as ``("layers.0", "post_backward_reduce")``.

    The module is None for the root of the model, whose name the range leaves out.
    """
    match = _UNIT.fullmatch(name)
    if match is None:
        return None, ""
    module = match[2] or match[3]
    return (None if module in _ROOT_UNIT else module), match[1]


def step_number(name: str) -> int | None:
    """The N of `perfscope.step:N`, `ProfilerStep#N`, or an NVTX range such as `iteration N`."""
    digits = re.match(r"(?:perfscope\.step:|ProfilerStep\s*#\s*)(\d{1,9})", name) or _NVTX_STEP.fullmatch(
        name
    )
    return int(digits[1]) if digits else None


# Runtime calls that never put work on a device: they need not be remembered.
_IDLE_CALL = re.compile(
    r"Synchronize|Event|Wait|Query|Get|Capturing|Capture|Malloc|Free|Occupancy|Peek|Attribute|Create|Destroy"
    r"|SetDevice|Register|ModuleLoad|INVALID|Flush"
)
_TRACED_CALL = re.compile("|".join(pattern for pattern, _ in RUNTIME_CALLS))
_LAUNCH_CALL = re.compile(r"Launch|Mem(?:cpy|set)|Enqueue|Append")


def launches(name: str) -> bool:
    """Whether a runtime call may put work on a device."""
    return bool(_LAUNCH_CALL.search(name)) or not _IDLE_CALL.search(name)


def launches_kernels(name: str) -> bool:
    """Whether a runtime call always puts kernels on a device."""
    return bool(re.search("Launch|Enqueue", name))


def is_traced_call(name: str) -> bool:
    """Whether a runtime call becomes a row: one that launches, copies, waits or allocates."""
    return bool(_TRACED_CALL.search(name))
