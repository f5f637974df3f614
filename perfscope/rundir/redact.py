"""Keeping secrets out of a run directory.

Two rules, because a deny-list alone always misses something: the environment enters by
allow-list only, and every text that enters (command line, allowed environment values, labels)
passes `redact_text`, which knows how secrets are usually written. Over-redaction costs a
reader one argument; a leak cannot be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "<redacted>"
MAX_ARGUMENT = 4096  # characters of one argument that are kept
_MAX_SCANNED = 65_536  # characters of one argument that are looked at; far more than is kept

# Environment that explains performance. Exact names, then prefixes whose whole family is harmless.
_ALLOWED_LIST = """
CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER
CUDA_MODULE_LOADING CUBLAS_WORKSPACE_CONFIG NVIDIA_VISIBLE_DEVICES NVIDIA_TF32_OVERRIDE
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HSA_ENABLE_SDMA GPU_MAX_HW_QUEUES OPENBLAS_NUM_THREADS
NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS MALLOC_CONF MALLOC_ARENA_MAX LD_PRELOAD PYTHONHASHSEED
PYTHONUNBUFFERED PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF TORCH_CUDA_ARCH_LIST
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCH_SHOW_CPP_STACKTRACES
TORCH_USE_CUDA_DSA TORCH_CUDNN_V8_API_DISABLED TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_ENABLE_MONITORING
TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE
TORCHINDUCTOR_MAX_AUTOTUNE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS WORLD_SIZE RANK LOCAL_RANK
LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT
PET_NPROC_PER_NODE PET_NNODES OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK
OMPI_COMM_WORLD_LOCAL_SIZE PMI_RANK PMI_SIZE PMIX_RANK MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE
HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME
HOROVOD_CPU_OPERATIONS HOROVOD_GPU_OPERATIONS SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_NTASKS
SLURM_NTASKS_PER_NODE SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_ID SLURM_CPUS_PER_TASK
SLURM_CPUS_ON_NODE SLURM_JOB_NODELIST SLURM_JOB_PARTITION SLURM_CPU_BIND SLURM_MEM_BIND SLURM_GPUS
SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK PBS_JOBID PBS_NP PBS_NUM_NODES LSB_JOBID FLUX_JOB_ID
"""
_ALLOWED_NAMES = frozenset(_ALLOWED_LIST.split())
_ALLOWED_PREFIXES = ("OMP_", "KMP_", "GOMP_", "MKL_", "NCCL_", "RCCL_", "GLOO_", "UCX_")

_END_OF_NAME = r"(?![A-Za-z0-9])"
# A name whose value is a secret: `--hf-token`, `AWS_SECRET_ACCESS_KEY`, `hub.apiKey`, `db_password`.
_SECRET_WORD = (
    r"(?:token|secrets?|passw(?:or)?ds?|passphrase|pwd|credentials?|authorization|cookie|bearer"
    r"|(?:api|access|secret|private|auth|account|shared|storage|service|signing|encryption|session|client|hmac|ssh"
    r"|wandb|comet|neptune|clearml|mlflow|openai|anthropic|hf|license|licence)[-_. ]?key|auth)"
)
# The last word says that the value is not the secret itself: a path, a count, an index.
_HARMLESS_TAIL = (
    r"(?![-_.](?:file|path|dir|ids?|len|length|size|count|num|type|dim|dropout|prob|limit|budget)"
    + _END_OF_NAME
    + r")"
)
# Camel case and separators both end a word; "tokenizer" and "max-tokens" are not secrets. Bounded
# repeats after an anchored start keep a megabyte of letters linear.
_NAME = (
    r"(?<![A-Za-z0-9_.\-])(?:-D(?=[A-Z])|[-+]{0,3})(?:[A-Za-z0-9_.\-]{0,64}(?:[-_.]|(?<=[a-z0-9])(?=[A-Z])))?"
    rf"(?i:{_SECRET_WORD})(?:(?<=[a-z])(?![a-z0-9])|(?<=[A-Z])(?![A-Za-z0-9])){_HARMLESS_TAIL}"
    r"[A-Za-z0-9_.\-]{0,64}"
)
_VALUE = r"""(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s"'])+"""
_SECRET_OPTION = re.compile(rf"{_NAME}\Z")
_WHOLE_ASSIGNMENT = re.compile(rf"({_NAME}[=:]).*\Z", re.DOTALL)
_ASSIGNMENT = re.compile(rf"""({_NAME}["']?\s{{0,8}}[=:]\s{{0,8}}){_VALUE}""")
_SPACED_OPTION = re.compile(rf"(?=--?[A-Za-z])({_NAME}\s{{1,8}})(?!--)(?!<redacted>){_VALUE}")
_SCHEME = re.compile(r"(?i)\b((?:bearer|basic)\s{1,8})[A-Za-z0-9._~+/=\-]{6,}")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,31}://)[^\s/\"']{1,4096}@")
_SIGNED_QUERY = re.compile(
    r"(?i)([?&](?:sig|signature|x-amz-signature|x-goog-signature|key|code)=)[^&\s\"']+"
)
_KNOWN_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_[A-Za-z0-9]{8,} | api_org_[A-Za-z0-9]{8,}
    | gh[pousr]_[A-Za-z0-9]{8,} | github_pat_[A-Za-z0-9_]{8,} | glpat-[A-Za-z0-9_\-]{8,}
    | (?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}
    | sk-[A-Za-z0-9_\-]{12,} | xox[a-z]-[A-Za-z0-9\-]{8,} | AIza[0-9A-Za-z_\-]{20,} | ya29\.[0-9A-Za-z_\-]{8,}
    | nvapi-[A-Za-z0-9_\-]{8,} | npm_[A-Za-z0-9]{16,} | pypi-[A-Za-z0-9_\-]{16,} | dop_v1_[a-f0-9]{16,}
    | eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?
    )""",
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.S
)


def redact_argv(argv: Iterable[str]) -> list[str]:
    """A command line that may be stored: as many arguments, secrets replaced by `<redacted>`.

    Bytes that are not UTF-8 (surrogate escapes) become `\\xNN`; an argument longer than
    `MAX_ARGUMENT` characters is cut and says so.
    """
    stored = []
    hide_next = False
    for raw in argv:
        text = _as_utf8(raw)
        # After `--token` comes its value, unless the next option follows at once.
        if hide_next and not text.startswith("--"):
            stored.append(HIDDEN)
            hide_next = False
            continue
        hide_next = _announces_secret(text)
        # As an argument of its own, everything after the sign is the value, spaces and commas too.
        whole = _WHOLE_ASSIGNMENT.match(text[:_MAX_SCANNED])
        stored.append(whole[1] + HIDDEN if whole else redact_text(text))
    return stored


def redact_text(text: str) -> str:
    """`text` with everything that looks like a secret replaced, and cut to `MAX_ARGUMENT` characters."""
    text = _as_utf8(text)
    scanned = text[:_MAX_SCANNED]
    for pattern, replacement in (
        (_PRIVATE_KEY, HIDDEN),
        (_USERINFO, rf"\1{HIDDEN}@"),
        (_SCHEME, rf"\1{HIDDEN}"),
        (_KNOWN_SHAPES, HIDDEN),
        (_SIGNED_QUERY, rf"\1{HIDDEN}"),
        (_ASSIGNMENT, rf"\1{HIDDEN}"),
        (_SPACED_OPTION, rf"\1{HIDDEN}"),
    ):
        scanned = pattern.sub(replacement, scanned)
    if len(scanned) > MAX_ARGUMENT or len(text) > _MAX_SCANNED:
        return f"{scanned[:MAX_ARGUMENT]}… ({len(text):,} characters)"
    return scanned


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain performance, sorted by name, values redacted. Nothing else enters a run."""
    return {
        name: redact_text(environment[name])
        for name in sorted(environment)
        if name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES)
    }


def _announces_secret(text: str) -> bool:
    """Whether the argument after `text` is a secret: `--token`, `-api-key`, a lone `Bearer`."""
    if len(text) > 128:
        return False
    if text.lower().rstrip(":") in ("bearer", "basic", "authorization"):
        return True
    return text.startswith("-") and _SECRET_OPTION.match(text) is not None


def _as_utf8(text: str) -> str:
    """Text without lone surrogates: undecodable argv bytes as `\\xNN`."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that is no escaped byte
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
