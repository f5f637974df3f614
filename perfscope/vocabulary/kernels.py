"""Types of kernels and operators, and how their names tell them."""

from __future__ import annotations

from enum import Enum


class KernelType(str, Enum):
    """What a kernel, copy or operator does. The value is the code in the JSON report."""

    GEMM = "gemm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"  # copies and sets of the runtime; kernels that copy are elementwise
    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"
    OTHER = "other"

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


NOT_COMPUTE = frozenset({KernelType.COPY, KernelType.COMMUNICATION})
MATRIX = frozenset({KernelType.GEMM, KernelType.ATTENTION, KernelType.CONVOLUTION})
MOVES_BYTES = frozenset({KernelType.ELEMENTWISE, KernelType.NORMALIZATION, KernelType.REDUCTION})


class CopyKind(str, Enum):
    """Between what a copy moves. The value is the code in the JSON report."""

    HOST_TO_DEVICE = "HtoD"
    DEVICE_TO_HOST = "DtoH"
    DEVICE_TO_DEVICE = "DtoD"
    PEER_TO_PEER = "P2P"
    HOST_TO_HOST = "HtoH"
    SET = "set"
    UNKNOWN = "unknown"

    __str__ = str.__str__


_NORMS = r"(?:layer|rms|batch|group|instance|l2)_?norm|(?:^|_|:)[bl]n_(?:fw|bw)"

# Tables of (regular expression, type): the first that is found in the name counts. For kernels, upper and
# lower case are alike, and what stands before the template arguments is looked up before the whole name.

# Kernels that torch.compile generates: their names list the operators that were fused, and say first what the
# kernel is (template, pointwise, reduction, persistent reduction).
GENERATED_KERNELS = (
    (r"^triton_\w*flex_attention|^triton_\w*(?:sdpa|attention)", KernelType.ATTENTION),
    (r"^triton_tem_\w*conv", KernelType.CONVOLUTION),
    (r"^triton_tem_", KernelType.GEMM),
    (r"^(?:triton|cpp)_\w*" + _NORMS, KernelType.NORMALIZATION),
    (r"^triton_(?:red|per|spl|mix|for_red)_|^cpp_fused_\w*(?:softmax|sum|mean)", KernelType.REDUCTION),
    (r"^triton_(?:poi|for)_|^cpp_fused_", KernelType.ELEMENTWISE),
)
KERNELS = (
    (r"rotary|rope(?:_|$)", KernelType.ELEMENTWISE),
    (r"(?:batch|single)_?(?:prefill|decode)", KernelType.ATTENTION),
    (r"reshape_and_cache|concat_and_cache|kv_?cache|embedding", KernelType.OTHER),
    (
        r"flash_?(?:attn|attention|fwd|bwd|mla|splitkv)|(?:^|_)flash::|fmha|sdpa|attention"
        r"|(?:^|[_:])attn",
        KernelType.ATTENTION,
    ),
    (
        r"(?:^|[_:])mha_|(?:^|[_:])mla_|paged_?kv|fwd_splitkv|attn_(?:fwd|bwd)",
        KernelType.ATTENTION,
    ),
    (
        r"multi_tensor|adam|rmsprop|adagrad|adafactor|(?:^|_)lamb(?!da)|(?:^|_)sgd|muon_",
        KernelType.OPTIMIZER,
    ),
    (_NORMS, KernelType.NORMALIZATION),
    (r"RowwiseMoments|GammaBeta|ComputeInternalGradients|ComputeFusedParams", KernelType.NORMALIZATION),
    (
        r"conv(?!ert|ersion|erge)|winograd|wgrad|dgrad|fprop|im2col|col2im|vol2col"
        r"|igemm_(?:fwd|bwd|wrw)",
        KernelType.CONVOLUTION,
    ),
    (r"SubTensorOp|batched_transpose_\d|depthwise", KernelType.CONVOLUTION),
    (
        r"(?<!fb)gemm|gemv|cutlass|cublas|hipblas|rocblas|Cijk_|matmul|nvjet|xmma"
        r"|splitk_?reduce",
        KernelType.GEMM,
    ),
    (
        r"(?:^|[_:])(?:mm|bmm|addmm|dot)_|dot_kernel|fused_moe|marlin|machete|(?:^"
        r"|_)ck_tile|^ck::",
        KernelType.GEMM,
    ),
    (
        r"index|gather|scatter|embedding|sort|top_?k|pool|upsample|multinomial"
        r"|searchsorted|unique",
        KernelType.OTHER,
    ),
    (
        r"softmax|reduce|reduction|argmax|argmin|cumsum|(?:^|[_:])scan|nll_loss"
        r"|cross_?entropy",
        KernelType.REDUCTION,
    ),
    (
        r"elementwise|vectorized|unrolled|pointwise|CatArray|(?:^|_)fill|(?:^|_)copy|(?:^"
        r"|_)cast|dropout",
        KernelType.ELEMENTWISE,
    ),
    (
        r"(?:silu|gelu|relu|swiglu|act)_and_mul|bias_?add|transpose|permute|quant",
        KernelType.ELEMENTWISE,
    ),
)

# Kernels of libraries that run what is among their template arguments.
SHELLS = r"^(?:void )?(?:cutlass|ck|ck_tile|rocprim|cub)(?:::\w+)*::\w*$|kentry$"

_ATEN = r"(?:^|::)_?_?"
# Operators: of kernels whose own name does not tell, and of programs that run on the host.
OPERATORS = (
    (r"attention|sdpa|flash_?attn|fmha|(?:^|::)mla_", KernelType.ATTENTION),
    (r"_foreach_|_fused_(?:adam|sgd|adagrad)|Optimizer\.step|multi_tensor", KernelType.OPTIMIZER),
    (_NORMS + r"|(?:Layer|RMS|Batch|Group|Instance)Norm", KernelType.NORMALIZATION),
    (r"conv(?!ert)|Conv(?:olution|\d?d)", KernelType.CONVOLUTION),
    (
        _ATEN + r"(?:add|ba?dd|sp)?(?:mm|bmm|mv|addbmm|baddbmm|matmul|linear|dot|vdot|einsum"
        r"|bilinear)(?:_|$|\b)",
        KernelType.GEMM,
    ),
    (
        _ATEN + r"(?:scaled_mm|int_mm|grouped_mm|addmm_activation|mkldnn_linear|mkl_linear)"
        r"|(?<!fb)gemm",
        KernelType.GEMM,
    ),
    (r"(?:^|::)(?:Mm|Addmm|Bmm|Baddbmm|Linear|MatMul)(?:Backward|$)", KernelType.GEMM),
    (
        _ATEN + r"(?:log_)?softmax|logsumexp|cross_entropy|nll_loss|mse_loss|l1_loss|bce"
        r"|binary_cross",
        KernelType.REDUCTION,
    ),
    (
        _ATEN + r"(?:sum|nansum|mean|max|min|amax|amin|aminmax|argmax|argmin|prod|all|any|var|std"
        r"|var_mean|std_mean|norm|linalg_vector_norm|count_nonzero|cumsum|cumprod"
        r"|trace)(?:_dim|_backward)?_?(?:$|\.)",
        KernelType.REDUCTION,
    ),
    (
        _ATEN + r"(?:add|sub|rsub|mul|div|neg|abs|sign|exp|log|sqrt|rsqrt|pow|square|reciprocal"
        r"|sin|cos|tanh|sigmoid|relu|gelu|silu|elu|leaky_relu|hardtanh|hardswish|softplus"
        r"|mish|threshold|clamp|clamp_min|clamp_max|where|lerp|addcmul|addcdiv|dropout"
        r"|native_dropout|bernoulli|masked_fill|eq|ne|lt|le|gt|ge|maximum|minimum"
        r"|logical_\w+|bitwise_\w+|floor|ceil|round|isnan|isfinite|erf|fill|zero|zeros"
        r"|ones|full|copy|clone|contiguous|to|to_copy|cat|stack|triu|tril|normal|uniform"
        r"|rotary_embedding|silu_and_mul|glu)(?:_like|_backward)?_?(?:$|\.)",
        KernelType.ELEMENTWISE,
    ),
)

# Kernels that compute with matrix units (tensor cores, matrix cores), by what their names say. torch's
# TensorBoard plugin has a similar list for NVIDIA.
MATRIX_UNITS = (
    r"[hsidc](?:884|1688|16816|16832|8816)|hmma|imma|wgmma|gmma|tensorop|tensor16x8|wmma|nvjet|tcgen05|umma"
    r"|xmma_|flash_(?:fwd|bwd)|FlashAttn|xdl|mfma|gtcx|_MI\d+x\d+"
)
# Kernels of those types that do not.
NO_MATRIX_UNITS = r"simt|gemv|gemmSN|(?<!h)sgemm_\d|magma_s|_ffma_|dgemm_largek|winograd"

# How many elements a matrix product loads at a time, by its kernel's name, and how many it would if all
# operands began and continued at multiples of 16 bytes, by the type that the name tells.
LOADS = r"_(?:align|ldg)(\d+)(?![0-9])"
ALIGNED = (
    (r"(?:bf16|f16|fp16)_?\w*(?:16816|1688|884|161616)(?:gemm|fprop|dgrad|wgrad)", 8),
    (r"(?:h(?:884|1688|16816)|s16816)(?:gemm|fprop|dgrad|wgrad)", 8),
    (r"(?:tf32|s1688)\w*(?:gemm|fprop|dgrad|wgrad)", 4),
)

# Kernels of convolution libraries that convert between NCHW and NHWC.
CONVERTS_LAYOUT = r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|nchwAddPadding|batched_transpose_\d"

# Kinds of copies by what their names say: NVIDIA's and AMD's `Memcpy HtoD (Pinned -> Device)`.
COPY_KINDS = (
    (r"memset|memfill|\bset\b", CopyKind.SET),
    (r"HtoD|HostToDevice|H2D|M2D", CopyKind.HOST_TO_DEVICE),
    (r"DtoH|DeviceToHost|D2H|D2M", CopyKind.DEVICE_TO_HOST),
    (r"PtoP|P2P|Peer", CopyKind.PEER_TO_PEER),
    (r"DtoD|DeviceToDevice|D2D", CopyKind.DEVICE_TO_DEVICE),
    (r"HtoH|HostToHost|H2H|M2M", CopyKind.HOST_TO_HOST),
)

# Runtime calls that launch many kernels at once (CUDA, HIP, XPU).
GRAPH_LAUNCH = r"GraphLaunch|GraphExec|CommandBuffer|CommandGraph|ExecuteGraph"
