"""Framework-specific recommendations: which framework has which option, in English.

Findings say what is slow; what can be done about it depends on the framework. `TrainingAdvice` is about the
framework that computes, `CommAdvice` about the library that communicates: a torch training may send by
Horovod, or speak MPI beside its gradients. Names of options were looked up where the comments say. A
framework that is not in the tables gets advice that is true of any.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from perfscope.vocabulary.frameworks import FrameworkName
from perfscope.vocabulary.workload import Workload


class TrainingAdvice(Struct, frozen=True, kw_only=True):
    """For the users of a framework, a sentence each unless said otherwise.

    Attributes:
        work: noun for what the program does.
        loader: noun for what the training gets its batches from.
        busy: where computation is spent: "in operators".
        faster_input, faster_copies, quicker_update, fewer_launches, fewer_bytes, shorter_gaps: what to do
            about waiting for input, copies, the update, late launches, layers at the memory roof, idle time.
        gaps: what happens in gaps that no trace shows; gap_is: the same in a few words, in brackets.
        heavy, heavy_unnamed: what to do about computation where layers are known, and where they are not.
        matrix_units, fuse: likewise on devices whose matrix products use no matrix units, and where much of
            the time goes into kernels that move bytes.
        channels_last: about convolutions that convert layouts.
        unnamed: why computation cannot be attributed to a layer.
        no_layers: reason why the trace names no layers; "": the probe's own words are enough.
        samples_from: where the samples of a step are known from.
        no_samples, no_width: reasons why there is no throughput: how many samples a step takes is not known,
            or over how many ranks a batch is split.
        threads: setting of so many compute threads per rank, as a clause with a place for the number; "":
            there is none.
        trace_anyway: what to do where this framework's windows are off.
        unknown: part of the step -> why a zero there means that nothing is known; "" = the probe says
        it.
    """

    work: str = "training"
    loader: str = "input pipeline"
    busy: str = "in operators"
    faster_input: str = (
        "Prepare batches beside the training (prefetching, more workers), or use a faster store."
    )
    faster_copies: str = "Keep data on the device, and copy the next batch while this one is computed."
    quicker_update: str = (
        "Fuse the updates of many parameters, or shard the optimizer's state over the ranks."
    )
    fewer_launches: str = "Launch less: compile the step, larger batches, read no results inside the step."
    fewer_bytes: str = "Move fewer bytes: fuse elementwise operators, use lower precision."
    gaps: str = "What the host does meanwhile (code between operators, logging, waiting) is not traced."
    gap_is: str = "code between operators, late launches"
    shorter_gaps: str = "Profile the training loop; move logging, checkpoints and metrics out of the step."
    heavy: str = "Look at the largest layers first: precision, fused operators, batch size."
    heavy_unnamed: str = (
        "Look at the longest operators in the timeline first: precision, fused operators, batch size."
    )
    matrix_units: str = (
        "Compute in bfloat16 or float16 (mixed precision), or in TF32: the matrix products use no matrix "
        "units (tensor cores)."
    )
    fuse: str = (
        "Fuse elementwise operators, normalizations and reductions, which move bytes and compute little. "
        "Then lower precision and batch size."
    )
    channels_last: str = "Keep the model and its inputs in NHWC, so that nothing is converted."
    unnamed: str = "The trace names no layers, so the time cannot be attributed to one."
    no_layers: str = "the trace names no layers"
    samples_from: str = "derived from the steps' batches"
    no_samples: str = "the batch size cannot be read from what the step is given; give `--samples-per-step`"
    no_width: str = "the program does not say over how many ranks a batch is split; give `--samples-per-step`"
    threads: str = ""
    trace_anyway: str = "See “Not collected”: the framework's profiler could not be used."
    unknown: Mapping[str, str] = {}


class CommAdvice(Struct, frozen=True, kw_only=True):
    """For the users of a communication library, a sentence each.

    Attributes:
        merge: for many small calls.
        small: for calls so small that latency rules; "": calls do not tell.
        one_call: for gradients that all go in one call; "": calls do not tell (they are merged in the trace).
        fewer_bytes: ways to send fewer bytes, in brackets; on_full_link: the same where a link is full.
        overlap: where overlapping would help.
        calls_are: what must be known about the calls in the trace before they are counted; "": nothing.
        counts: kind of call that `small` and `one_call` are about; "": the one that takes most time.
    """

    merge: str = "Reduce one flat array instead of many."
    small: str = "Its calls are small, so latency rules: send more at a time, or less often."
    one_call: str = ""
    fewer_bytes: str = "lower precision, larger batches"
    on_full_link: str = "lower precision, larger batches"
    overlap: str = (
        "Send fewer bytes or fewer, larger calls, start them earlier so that computation hides them, or use "
        "a faster link."
    )
    calls_are: str = ""
    counts: str = "all_reduce"


_GENERAL = TrainingAdvice()
# https://docs.pytorch.org/docs/stable: DataLoader, optim (foreach, fused), DistributedDataParallel, no_sync.
TORCH = TrainingAdvice(
    loader="data loader",
    faster_input="Give the DataLoader more workers, cheaper transforms, prefetching or a faster store.",
    faster_copies="Pin the input's memory and copy with non_blocking=True; keep tensors on the device.",
    quicker_update="Use the foreach or fused variant, or shard the optimizer's state over the ranks.",
    fewer_launches="Launch less: torch.compile, CUDA graphs, larger batches, no .item() inside the step.",
    fewer_bytes="Move fewer bytes: fuse elementwise operators (torch.compile), use lower precision.",
    gaps="What the host does meanwhile (Python between operators, logging, waiting) is not traced.",
    gap_is="Python between operators, late launches",
    shorter_gaps="Profile the training loop's Python; move logging, checkpoints and metrics out of the step.",
    heavy="Look at the largest layers first: precision, memory format, fused operators, batch size.",
    heavy_unnamed=(
        "Look at the longest operators in the timeline first: precision, memory format, fused operators, "
        "batch size."
    ),
    matrix_units=(
        "Use tensor cores: torch.autocast with bfloat16, or TF32 "
        "(torch.set_float32_matmul_precision('high'))."
    ),
    fuse=(
        "Fuse elementwise operators, normalizations and reductions with torch.compile: they move bytes and "
        "compute little. Then lower precision and batch size."
    ),
    channels_last=(
        "Keep the model and its inputs in NHWC: model.to(memory_format=torch.channels_last), and the same "
        "for each batch."
    ),
    no_layers="the trace names no layers (no module marks or Python stacks)",
    samples_from="the model's input shape; `--samples-per-step` overrides",
    no_samples="the batch size cannot be read from the model's input; give `--samples-per-step`",
    no_width=(
        "the model's outermost module does not say over how many ranks a batch is split; "
        "give `--samples-per-step`"
    ),
    threads="`OMP_NUM_THREADS={}` (unset, torchrun sets 1)",
)
# tensorflow.org/guide/data_performance, /guide/function, /xla; TF_NUM_INTRAOP_THREADS: process_util.cc.
_TENSORFLOW = TrainingAdvice(
    faster_input=(
        "Let tf.data work ahead: .map(num_parallel_calls=tf.data.AUTOTUNE), .cache(), and .prefetch("
        "tf.data.AUTOTUNE) last; or use a faster store."
    ),
    quicker_update="Let XLA fuse the updates: tf.function(jit_compile=True).",
    fewer_launches=(
        "Launch less: tf.function(jit_compile=True), larger batches, no .numpy() inside the step."
    ),
    fewer_bytes="Move fewer bytes: let XLA fuse (tf.function(jit_compile=True)), use lower precision.",
    gaps="What the host does meanwhile (Python around the tf.function, logging, waiting) is not traced.",
    gap_is="Python around the tf.function, late launches",
    shorter_gaps=(
        "Put the whole step into one tf.function, prefetch its batches, and move logging, checkpoints and "
        "metrics out of it."
    ),
    heavy="Look at the largest layers first: precision, XLA (jit_compile=True), batch size.",
    heavy_unnamed=(
        "Look at the longest operators in the timeline first: precision, XLA (jit_compile=True), batch size."
    ),
    no_layers="no operator of the traced steps is in the name scope of a layer of the model",
    threads="TF_NUM_INTRAOP_THREADS={}",
    trace_anyway=(
        "Trace a run of one worker, where TensorFlow's profiler is safe, or risk it with "
        "PERFSCOPE_TF_PROFILE=1."
    ),
)
# keras.io/api: Model.compile (steps_per_execution must be 1 on torch), PyDataset (workers).
_KERAS = replace(
    _GENERAL,
    faster_input=(
        "Give fit a tf.data pipeline that prefetches or a PyDataset with more workers, or use a faster store."
    ),
    quicker_update="Compile the model with jit_compile=True, so that the updates are fused.",
    fewer_launches="Launch less: compile(jit_compile=True), larger batches, steps_per_execution above 1.",
    fewer_bytes="Move fewer bytes: compile(jit_compile=True), a mixed-precision policy.",
    gaps="What the host does meanwhile (Keras's loop, callbacks, logging, waiting) is not traced.",
    gap_is="Keras's loop, callbacks, late launches",
    shorter_gaps=(
        "Let fit run several batches at a call (compile(steps_per_execution=...)); keep callbacks that want "
        "every batch out of it."
    ),
    heavy="Look at the largest layers first: a mixed-precision policy, jit_compile=True, batch size.",
    heavy_unnamed=(
        "Look at the longest operators in the timeline first: a mixed-precision policy, jit_compile=True, "
        "batch size."
    ),
    no_layers="no operator of the traced steps could be attributed to one of the model's layers",
    no_samples="Keras does not say how many samples a batch has; give `--samples-per-step`",
)
_UNKNOWN_UPDATE = (
    "XLA's operators do not say what they are for; only those in a scope or function called like an "
    'optimizer (jax.named_scope("optimizer")) can be identified, the others count as compute'
)
_UNKNOWN_INPUT = (
    "JAX's profile does not show where Keras takes its batches; the median over all steps is shown with the "
    "step times"
)
# docs.jax.dev: async_dispatch, gpu_performance_tips; optax: the update is part of the jitted function.
_JAX = TrainingAdvice(
    faster_copies="Put the next batch on the device while this one computes (jax.device_put does not wait).",
    quicker_update="Donate the state to the jitted step (donate_argnums), or shard it over the processes.",
    fewer_launches=(
        "Launch less: several steps in one jitted call (jax.lax.scan), larger batches, no reading of the "
        "loss in every step."
    ),
    fewer_bytes="Move fewer bytes: lower precision (bfloat16), and elementwise work inside the jitted step.",
    gaps=(
        "What the host does meanwhile (making the next batch, Python between jitted calls, logging, waiting) "
        "is not traced."
    ),
    gap_is="making the next batch, Python between jitted calls",
    shorter_gaps=(
        "Make the next batch while this one computes, read the loss less often, or run several steps in one "
        "call (jax.lax.scan)."
    ),
    heavy="Look at the largest layers first: precision (bfloat16), batch size, shapes that XLA fuses well.",
    heavy_unnamed=(
        "Put jax.named_scope around layers to see which are long; then precision (bfloat16) and batch size."
    ),
    no_layers="no operator of the compiled step is in a named_scope",
    no_samples="the arguments of the step do not show its batch size; give `--samples-per-step`",
    trace_anyway="Use a version of JAX whose profiler perfscope knows (see docs/frameworks.md).",
    unknown={"input_wait": "", "optimizer": _UNKNOWN_UPDATE},
)
# mxnet.apache.org/versions/1.9.1: gluon.data.DataLoader, HybridBlock.hybridize, faq/env_var.
_MXNET = TrainingAdvice(
    loader="data loader",
    faster_input=(
        "Give gluon's DataLoader num_workers, wrap a DataIter in mx.io.PrefetchingIter, or a faster store."
    ),
    faster_copies="Copy with as_in_context before the batch is needed; DataLoader(pin_memory=True) helps.",
    quicker_update="Raise MXNET_OPTIMIZER_AGGREGATION_SIZE (4): so many weights are updated in one operator.",
    fewer_launches=(
        "Launch less: hybridize(static_alloc=True, static_shape=True), larger batches, no asscalar() inside "
        "the step."
    ),
    gaps="What the host does meanwhile (Python between operators, logging, waiting) is not traced.",
    gap_is="Python between operators, late launches",
    shorter_gaps=(
        "hybridize() the network, read losses less often (asscalar and asnumpy wait for the engine), and "
        "move logging and checkpoints out of the step."
    ),
    heavy_unnamed=(
        "Look at the longest operators in the timeline first: hybridize(static_alloc=True), precision, batch "
        "size."
    ),
    unnamed="MXNet's profiler names operators, not layers, so the time cannot be attributed to one.",
    no_samples="no batch of a DataLoader or DataIter was seen in a step; give `--samples-per-step`",
    threads="`OMP_NUM_THREADS={}`",
)
_OWN = replace(
    _GENERAL,
    busy="outside communication",
    gap_is="what is between calls",
    heavy="",
    heavy_unnamed=(
        "Look into the program's own work (`perfscope run --stacks` samples its Python), or spread it over "
        "more ranks."
    ),
    unnamed="No profiler looks into it: it may be computation, reading of files, or waiting for something.",
    no_layers="no profiler looks into what the program computes",
    samples_from="as given to perfscope.step()",
    no_samples=(
        "the program does not say how many samples a step takes: call perfscope.step(samples) or give "
        "`--samples-per-step`, if it has any"
    ),
    threads="`OMP_NUM_THREADS={}`",
    unknown=dict.fromkeys(("copy", "input_wait", "optimizer"), ""),
)
# docs.vllm.ai: CUDA graphs, torch.compile, optimization; docs.sglang.ai: server arguments.
_INFERENCE = replace(
    TORCH,
    work="inference",
    loader="input pipeline",
    faster_input="Prepare requests (tokenization, images) in other processes, or ahead of the step.",
    fewer_launches="Launch less: CUDA graphs, torch.compile, larger batches, no .item() inside the step.",
    gaps="What the host does meanwhile (scheduling, sampling, tokenization, waiting for requests) is not "
    "traced.",
    gap_is="scheduling, sampling, tokenization, waiting for requests, late launches",
    shorter_gaps="Profile the Python between the steps (scheduling, sampling, tokenization), or overlap it "
    "with the device.",
    heavy="Look at the largest layers first: quantization, fused kernels, batch size, attention backend.",
    heavy_unnamed="Look at the longest kernels first: quantization, fused kernels, batch size, attention "
    "backend.",
)
_INFERENCE_KEY = "inference"
_TRAINING: dict[str, TrainingAdvice] = {
    _INFERENCE_KEY: _INFERENCE,
    FrameworkName.TORCH: TORCH,
    FrameworkName.TENSORFLOW: _TENSORFLOW,
    FrameworkName.KERAS_TENSORFLOW: replace(
        _KERAS, threads=_TENSORFLOW.threads, trace_anyway=_TENSORFLOW.trace_anyway
    ),
    FrameworkName.KERAS_JAX: replace(
        _KERAS,
        trace_anyway=_JAX.trace_anyway,
        unknown={"input_wait": _UNKNOWN_INPUT, "optimizer": _UNKNOWN_UPDATE},
    ),
    FrameworkName.KERAS_TORCH: replace(
        _KERAS,
        fewer_launches=TORCH.fewer_launches,
        shorter_gaps=(
            "Keep callbacks that want every batch out of fit; compile(jit_compile=True) uses torch.compile."
        ),
        threads="`OMP_NUM_THREADS={}`",
    ),
    FrameworkName.JAX: _JAX,
    FrameworkName.MXNET: _MXNET,
    FrameworkName.MPI4PY: replace(_OWN, busy="between its calls of MPI", no_layers=""),
    FrameworkName.PYTHON: _OWN,
}

MPI = "mpi"  # whatever calls it
_C10D = CommAdvice(
    merge="Raise bucket_cap_mb, or reduce one flat tensor instead of many.",
    small="Its calls are small, so latency rules: accumulate gradients over several batches (no_sync).",
    one_call="All gradients go in one call after the backward pass: lower bucket_cap_mb to start earlier.",
    fewer_bytes="bf16 or compressed gradients, accumulation, another scheme",
    on_full_link="bf16 gradients, accumulation over batches",
    overlap="Overlap more of it with the backward pass, send fewer bytes, or use a faster link.",
)
_LIBRARIES: dict[str, CommAdvice] = {
    FrameworkName.TORCH: _C10D,
    # horovod.readthedocs.io: tensor-fusion; DistributedOptimizer (backward_passes_per_step, groups ...).
    FrameworkName.HOROVOD: CommAdvice(
        merge=(
            "Raise HOROVOD_CYCLE_TIME or HOROVOD_FUSION_THRESHOLD, so that Horovod sends more tensors at "
            "once, or pass num_groups to DistributedOptimizer."
        ),
        small=(
            "Its calls are small, so latency rules: accumulate gradients over several batches "
            "(backward_passes_per_step of DistributedOptimizer)."
        ),
        one_call=(
            "All gradients go in one call after the backward pass: leave out groups and num_groups of "
            "DistributedOptimizer to start earlier."
        ),
        fewer_bytes="compression=hvd.Compression.fp16, backward_passes_per_step",
        on_full_link="compression=hvd.Compression.fp16, backward_passes_per_step",
        overlap=_C10D.overlap,
        calls_are=(
            "Calls are tensors as handed over: Horovod negotiates each, and may send several at once. "
        ),
    ),
    # tensorflow.org: tf.distribute.experimental.CommunicationOptions.
    FrameworkName.TENSORFLOW: CommAdvice(
        merge="Raise bytes_per_pack (tf.distribute.experimental.CommunicationOptions): fewer, larger calls.",
        small=(
            "Its calls are small, so latency rules: larger batches, or gradients added up over several "
            "before they are applied."
        ),
        one_call=(
            "All gradients go in one call after the backward pass: a bytes_per_pack below their size "
            "(tf.distribute.experimental.CommunicationOptions) lets updates begin earlier."
        ),
        fewer_bytes="lower precision, larger batches",
        overlap=_C10D.overlap,
    ),
    # docs.jax.dev: gpu_performance_tips; docs.nvidia.com/jax-toolbox: "Many small collectives".
    FrameworkName.JAX: CommAdvice(
        merge=(
            "Hand lax.pmean the whole tree of gradients, so that XLA can merge its calls; on GPUs "
            "XLA_FLAGS=--xla_gpu_all_reduce_combine_threshold_bytes=... says up to which size."
        ),
        small=(
            "Its calls are small, so latency rules: larger batches, or gradients added up over several "
            "before lax.pmean."
        ),
        one_call=(
            "All gradients go in one call after the backward pass; on GPUs XLA's latency-hiding scheduler "
            "(XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true) lets it run beside computation."
        ),
        fewer_bytes="gradients in bfloat16, larger batches",
        on_full_link="gradients in bfloat16, larger batches",
        overlap=_C10D.overlap,
    ),
    # mxnet.apache.org/api/faq: distributed_training, gradient_compression. One row stands for all parameters.
    FrameworkName.MXNET: CommAdvice(
        overlap=(
            "Send fewer bytes (gluon.Trainer(compression_params={'type': '2bit'}), larger batches), start "
            "more servers (DMLC_NUM_SERVER), or use a faster link."
        ),
        small="",
        fewer_bytes="gluon.Trainer(compression_params={'type': '2bit'}), larger batches",
        on_full_link="gluon.Trainer(compression_params={'type': '2bit'}), larger batches",
        calls_are="Pushing and pulling all parameters is one call per step. ",
    ),
    # mpi4py.readthedocs.io; the MPI standard on non-blocking communication.
    MPI: CommAdvice(
        merge="Pack values into one buffer and send or reduce it once.",
        small="Its calls are small, so latency rules: compute more between two calls, or combine several.",
        fewer_bytes="lower precision, only what changed",
        on_full_link="lower precision, only what changed",
        counts="",
        overlap=(
            "Start calls earlier and wait for them later (Isend, Irecv, Iallreduce), with work in between "
            "that does not need them; send fewer bytes, or use a faster link."
        ),
    ),
}
_ELSEWHERE = CommAdvice()


def advice_key(framework: str, workload: Workload) -> str:
    """What `training_advice` takes: the framework's name, or that inference has its own advice."""
    return _INFERENCE_KEY if workload is Workload.INFERENCE else framework


def training_advice(framework: str) -> TrainingAdvice:
    """For that framework, as `RunAnalysis.framework` names it; general advice for one that is not known."""
    return _TRAINING.get(framework, _GENERAL)


def comm_advice(library: str) -> CommAdvice:
    """For what carries the calls: a framework's own library by the framework's name, "horovod" or MPI."""
    return _LIBRARIES.get(library.removeprefix("keras-"), _ELSEWHERE)
