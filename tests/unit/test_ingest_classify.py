"""What an event is, from its category and name."""

from __future__ import annotations

import pytest

from perfscope.ingest.classify import Device, Host, device_class, host_class, launches, step_number


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
    assert device_class("kernel", name) is Device.COMM


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_kernel>(int)",
        "ampere_sgemm_128x64_tn",
        "triton_poi_fused_add_0",
        "NCCLlookalike",  # prefixes mind the case
        "void ns::reduce_nccl_free(int)",
        "step::optimizer_kernel",
    ],
)
def test_other_kernels_compute(name: str) -> None:
    assert device_class("kernel", name) is Device.COMPUTE


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", Device.COPY),
        ("gpu_memset", "Memset (Device)", Device.COPY),
        ("kernel", "dmaCopy", Device.COPY),
        ("Memcpy", "anything", Device.COPY),
        ("gpu_user_annotation", "nccl:all_reduce", Device.ANNOTATION),
        ("kernel", "", Device.UNKNOWN),
        ("npu_op", "aclnnAdd", Device.UNKNOWN),
    ],
)
def test_copies_annotations_and_unknowns(category: str, name: str, expected: Device) -> None:
    assert device_class(category, name) is expected


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("cpu_op", "aten::mm", Host.OPERATOR),
        ("cpu_op", "fbgemm::jagged_2d_to_dense", Host.OPERATOR),
        ("Operator", "prims::convert", Host.OPERATOR),
        ("cpu_op", "torch::distributed::reducer::mul_out", Host.OPERATOR),
        ("cpu_op", "MyFunction", Host.REGION),
        ("cpu_op", "MyFunctionBackward", Host.REGION),
        ("cpu_op", "CompiledFunction", Host.REGION),
        ("cpu_op", "CompiledFunctionBackward", Host.REGION),
        ("cpu_op", "Torch-Compiled Region: 0/0", Host.REGION),
        ("user_annotation", "Torch-Compiled Region: 0/1", Host.REGION),
        ("cpu_op", "graph_0_cpp_fused_add_0", Host.REGION),
        ("cpu_op", "call", Host.REGION),
        ("cpu_op", "ConvolutionBackward0", Host.NODE),
        ("cpu_op", "torch::autograd::AccumulateGrad", Host.NODE),
        ("cpu_op", "torch::autograd::CopyBackwards", Host.NODE),
        ("cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0", Host.WRAPPER),
        ("cpu_op", "c10d::allreduce_", Host.COLLECTIVE_OP),
        ("cpu_op", "record_param_comms", Host.COMM_PARAMETERS),
        ("cpu_op", "DistributedDataParallel.forward", Host.ANNOTATION),
        ("user_annotation", "DistributedDataParallel.forward", Host.ANNOTATION),
        ("user_annotation", "## forward ##", Host.ANNOTATION),
        ("user_annotation", "nccl:all_reduce", Host.LAUNCH_NOTE),
        ("user_annotation", "gloo:all_reduce", Host.COMM),
        ("user_annotation", "mpi:broadcast", Host.COMM),
        ("user_annotation", "ucc:all_to_all", Host.COMM),
        ("user_annotation", "ProfilerStep#12", Host.PROFILER_STEP),
        ("user_annotation", "perfscope.step:12", Host.STEP),
        ("user_annotation", "perfscope.layer:features.0", Host.LAYER),
        ("user_annotation", "perfscope.layer:", Host.LAYER),
        ("user_annotation", "perfscope.input", Host.INPUT),
        ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Host.INPUT),
        ("user_annotation", "Optimizer.step#AdamW.step", Host.OPTIMIZER),
        ("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", Host.ZERO_GRAD),
        ("python_function", "nn.Module: Conv2d_0", Host.MODULE),
        ("python_function", "train.py(3): main", Host.OTHER),
        ("somebody's", "thing", Host.OTHER),
    ],
)
def test_host_spans(category: str, name: str, expected: Host) -> None:
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
