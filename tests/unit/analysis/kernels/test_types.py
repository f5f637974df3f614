"""Types of kernels, by names as traces of several vendors and libraries have them."""

from __future__ import annotations

import re

import pytest

from perfscope.analysis.kernels.types import (
    converts_layout,
    kind_of_copy,
    loads_of,
    type_of_kernel,
    type_of_operator,
    uses_matrix_units,
)
from perfscope.vocabulary import kernels as tables
from perfscope.vocabulary.kernels import CopyKind, KernelType

G, A, C, N = KernelType.GEMM, KernelType.ATTENTION, KernelType.CONVOLUTION, KernelType.NORMALIZATION
E, R, U, X = KernelType.ELEMENTWISE, KernelType.REDUCTION, KernelType.OPTIMIZER, KernelType.OTHER


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_sgemm_128x64_nn", G),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", G),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute", G),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", G),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn>(Params)", G),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>(cublasGemvParams)", G),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_MT128x128x32_MI16x16x1", G),
        ("_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_42GridwiseGemmMultiD", G),
        ("triton_tem_fused_addmm_gelu_3", G),
        ("fused_moe_kernel", G),
        (
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::half_t>>(Params)",
            A,
        ),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<Mainloop>>>()", A),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", A),
        ("kernel_unified_attention_2d", A),
        ("_fwd_grouped_kernel_stage1_attn", A),
        ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<KernelTraits>(Params)", A),
        ("_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_24BlockFmhaPipeline", A),
        ("triton_tem_fused_flex_attention_0", A),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32", C),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)", C),
        ("void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int)", C),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", C),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3I", C),
        ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1>(int)", C),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", N),
        ("MIOpenBatchNormFwdTrainSpatial", N),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(Tensor)", N),
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)", N),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipeline", N),
        ("triton_per_fused_add_native_layer_norm_2", N),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluKernel, array>(int)", E),
        ("triton_poi_fused_convolution_relu_3", E),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", E),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(float*)", E),
        ("void at::native::elementwise_kernel<128, 2, lambda(int)#1>(int, {lambda()#1})", E),
        ("at::native::xpu::VectorizedElementwiseKernel<4, CopyFunctor>", E),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>(ReduceOp)", R),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
            R,
        ),
        ("triton_red_fused__log_softmax_nll_loss_forward_1", R),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<AdamFunctor<float>>(T)", U),
        ("void at::native::(anonymous namespace)::fused_adam_cuda_kernel<float>()", U),
        ("void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(T)", X),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>(int)", X),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int)", X),
    ],
)
def test_type_of_a_kernel(name: str, kind: KernelType) -> None:
    assert type_of_kernel(name) is kind


def test_the_launching_operator_decides_where_the_name_does_not() -> None:
    assert type_of_kernel("kernel_17") is X
    assert type_of_kernel("kernel_17", "aten::mm") is G
    assert type_of_kernel("SomeEngine<float>", "aten::native_layer_norm") is N
    assert type_of_kernel("ampere_sgemm_128x64_nn", "aten::cudnn_convolution") is G, "the name tells"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (f"aten::{name}", G)
            for name in ("mm", "addmm", "bmm", "linear", "matmul", "_scaled_mm", "baddbmm")
        ),
        *(("AddmmBackward0", G), ("aten::einsum", G)),
        *((f"aten::{name}", C) for name in ("conv2d", "convolution_backward", "mkldnn_convolution")),
        *((f"aten::{name}", N) for name in ("batch_norm", "native_layer_norm_backward", "rms_norm")),
        *((f"aten::{name}", A) for name in ("scaled_dot_product_attention", "_flash_attention_forward")),
        *((f"aten::{name}", E) for name in ("add_", "relu", "mul", "gelu_backward", "copy_", "cat", "zero_")),
        *((f"aten::{name}", R) for name in ("sum", "mean", "_softmax", "cross_entropy_loss", "argmax")),
        *((f"aten::{name}", U) for name in ("_foreach_add_", "_fused_adamw_")),
        *((f"aten::{name}", X) for name in ("embedding", "max_pool2d", "index_select", "topk", "addressof")),
        ("vllm::unified_attention_with_output", A),
        ("cpp_fused_native_layer_norm_0", N),
        ("fbgemm::permute_2D_sparse_data", X),
    ],
)
def test_type_of_an_operator(name: str, kind: KernelType) -> None:
    assert type_of_operator(name) is kind


@pytest.mark.parametrize(
    ("name", "kind", "used"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", G, True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)", G, True),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_MT128x128x32_MI16x16x1_SN", G, True),
        ("volta_sgemm_64x64_nt", G, False),
        ("cutlass_80_simt_sgemm_128x128_8x4_nn_align1", G, False),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1", G, None),
        ("void at::native::reduce_kernel<512, 1, ReduceOp>()", R, None),
    ],
)
def test_matrix_units(name: str, kind: KernelType, used: bool | None) -> None:
    assert uses_matrix_units(name, kind) is used


@pytest.mark.parametrize(
    ("name", "elements", "aligned"),
    [
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)", 1, 8),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", 8, 8),
        ("cutlass_80_tensorop_f16_s16816gemm_f16_64x64_64x6_nn_align2", 2, 8),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align4>(Params)", 4, 4),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1", 1, 4),
    ],
)
def test_elements_that_a_matrix_product_loads_at_a_time(name: str, elements: int, aligned: int) -> None:
    assert loads_of(name) == (elements, aligned)


@pytest.mark.parametrize(
    "name",
    [
        "cutlass_80_simt_sgemm_128x128_8x4_nn_align1",  # no matrix units: any alignment does
        "cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_MT128x128x32_MI16x16x1_SN",
    ],
)
def test_alignment_is_not_guessed_where_the_name_does_not_tell(name: str) -> None:
    assert loads_of(name) is None


def test_kernels_that_only_convert_a_layout() -> None:
    assert converts_layout("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float>(...)")
    assert converts_layout("void cudnn::ops::nhwcToNchwKernel<__half>(...)")
    assert not converts_layout(
        "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x256x32"
    )
    assert not converts_layout("void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(...)")


def test_kinds_of_copies() -> None:
    names = {
        "Memcpy HtoD (Pinned -> Device)": CopyKind.HOST_TO_DEVICE,
        "Memcpy DtoH (Device -> Pageable)": CopyKind.DEVICE_TO_HOST,
        "Memcpy DtoD (Device -> Device)": CopyKind.DEVICE_TO_DEVICE,
        "Memcpy PtoP (Device -> Device)": CopyKind.PEER_TO_PEER,
        "CopyHostToDevice": CopyKind.HOST_TO_DEVICE,
        "Memset (Device)": CopyKind.SET,
        "dma": CopyKind.UNKNOWN,
    }
    assert {name: kind_of_copy(name) for name in names} == names


def test_expressions_of_any_case_have_no_escape_that_is_another_one_in_lower_case() -> None:
    every = (*tables.KERNELS, *tables.GENERATED_KERNELS, *tables.COPY_KINDS)
    assert [text for text, _ in every if re.search(r"\\[A-Z]", text)] == []
