"""What an event is, from its category and name."""

from __future__ import annotations

import pytest

from perfscope.ingest.classify import (
    DeviceClass,
    HostClass,
    device_class,
    host_class,
    launches,
    step_number,
    unit_of,
)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "rcclGenericKernel<1>",
        "hcclAllReduce",
        "msccl_kernel",
        "void mscclpp::allreduce7<__half>(...)",
        "void deep_ep::internode_ll::dispatch<true, 3>(void*, float*)",
        "deep_ep_combine",
        "void foo::ep::combine(int)",
        "nvshmemi_transfer_rma",
        "multimem_all_reduce_kernel",
        "void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<4>()",
    ],
)
def test_communication_kernels(name: str) -> None:
    assert device_class("kernel", name) is DeviceClass.COMM


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_kernel>(int)",
        "ampere_sgemm_128x64_tn",
        "triton_poi_fused_add_0",
        "NCCLlookalike",  # prefixes mind the case
        "void ns::reduce_nccl_free(int)",
        "step::optimizer_kernel",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 2>(long const*, int*, int*, int*, bool*, int)",
        "void deep_ep::internode::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    ],
)
def test_other_kernels_compute(name: str) -> None:
    assert device_class("kernel", name) is DeviceClass.COMPUTE


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", DeviceClass.COPY),
        ("gpu_memset", "Memset (Device)", DeviceClass.COPY),
        ("kernel", "dmaCopy", DeviceClass.COPY),
        ("Memcpy", "anything", DeviceClass.COPY),
        ("gpu_user_annotation", "nccl:all_reduce", DeviceClass.ANNOTATION),
        ("kernel", "", DeviceClass.UNKNOWN),
        ("npu_op", "aclnnAdd", DeviceClass.UNKNOWN),
    ],
)
def test_copies_annotations_and_unknowns(category: str, name: str, expected: DeviceClass) -> None:
    assert device_class(category, name) is expected


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("cpu_op", "aten::mm", HostClass.OPERATOR),
        ("cpu_op", "fbgemm::jagged_2d_to_dense", HostClass.OPERATOR),
        ("Operator", "prims::convert", HostClass.OPERATOR),
        ("cpu_op", "torch::distributed::reducer::mul_out", HostClass.OPERATOR),
        ("cpu_op", "MyFunction", HostClass.REGION),
        ("cpu_op", "MyFunctionBackward", HostClass.REGION),
        ("cpu_op", "CompiledFunction", HostClass.REGION),
        ("cpu_op", "CompiledFunctionBackward", HostClass.REGION),
        ("cpu_op", "Torch-Compiled Region: 0/0", HostClass.REGION),
        ("user_annotation", "Torch-Compiled Region: 0/1", HostClass.REGION),
        ("cpu_op", "graph_0_cpp_fused_add_0", HostClass.REGION),
        ("cpu_op", "call", HostClass.REGION),
        ("cpu_op", "ConvolutionBackward0", HostClass.NODE),
        ("cpu_op", "torch::autograd::AccumulateGrad", HostClass.NODE),
        ("cpu_op", "torch::autograd::CopyBackwards", HostClass.NODE),
        ("cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0", HostClass.WRAPPER),
        ("cpu_op", "c10d::allreduce_", HostClass.COLLECTIVE_OP),
        ("cpu_op", "record_param_comms", HostClass.COMM_PARAMETERS),
        ("cpu_op", "DistributedDataParallel.forward", HostClass.ANNOTATION),
        ("user_annotation", "DistributedDataParallel.forward", HostClass.ANNOTATION),
        ("user_annotation", "## forward ##", HostClass.ANNOTATION),
        ("user_annotation", "nccl:all_reduce", HostClass.LAUNCH_NOTE),
        ("user_annotation", "gloo:all_reduce", HostClass.COMM),
        ("user_annotation", "mpi:broadcast", HostClass.COMM),
        ("user_annotation", "ucc:all_to_all", HostClass.COMM),
        ("user_annotation", "ProfilerStep#12", HostClass.PROFILER_STEP),
        ("user_annotation", "perfscope.step:12", HostClass.STEP),
        ("user_annotation", "perfscope.layer:features.0", HostClass.LAYER),
        ("user_annotation", "perfscope.layer:", HostClass.LAYER),
        ("user_annotation", "perfscope.input", HostClass.INPUT),
        ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", HostClass.INPUT),
        ("user_annotation", "Optimizer.step#AdamW.step", HostClass.OPTIMIZER),
        ("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", HostClass.ZERO_GRAD),
        ("python_function", "nn.Module: Conv2d_0", HostClass.MODULE),
        ("python_function", "train.py(3): main", HostClass.FRAME),
        ("cuda_runtime", "cudaMemcpyAsync", HostClass.RUNTIME),
        ("somebody's", "thing", HostClass.OTHER),
    ],
)
def test_host_spans(category: str, name: str, expected: HostClass) -> None:
    assert host_class(category, name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cudaGraphLaunch", True),
        ("cuLaunchKernelEx", True),
        ("hipExtModuleLaunchKernel", True),
        ("cudaMemcpyAsync", True),
        ("hipMemsetAsync", True),
        ("urEnqueueKernelLaunch", True),
        ("somethingNew", True),  # better remembered in vain than missed
        ("cudaStreamSynchronize", False),
        ("cudaEventQuery", False),
        ("hipStreamWaitEvent", False),
        ("cudaMalloc", False),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", False),
    ],
)
def test_runtime_calls_that_may_put_work_on_a_device(name: str, expected: bool) -> None:
    assert launches(name) is expected


def test_step_numbers() -> None:
    names = ["perfscope.step:12", "ProfilerStep#3", "ProfilerStep# 4", "perfscope.step:", "other"]
    assert [step_number(name) for name in names] == [12, 3, 4, None, None]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("FSDP::all_gather (layers.0)", ("layers.0", "all_gather")),
        ("FSDP::backward_prefetch for layers.1", ("layers.1", "backward_prefetch")),
        ("FSDP::post_backward_reduce", (None, "post_backward_reduce")),
        ("FSDP::post_backward_rs_wait ()", (None, "post_backward_rs_wait")),
        ("FSDP::pre_forward (None)", (None, "pre_forward")),
    ],
)
def test_ranges_of_fsdp2_name_their_module_but_for_the_root(name: str, unit: tuple[str | None, str]) -> None:
    assert unit_of(name) == unit
