"""Every framework that the CNNs can be trained in. Adding one: a program train_NAME.py and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from perfscope.runners.config import BenchError
from perfscope.vocabulary.frameworks import RETIRED, FrameworkName


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    Attributes:
        name: for `--framework`.
        summary: one line: how it trains, on one process and on several (`{backend}`: what moves gradients).
        program: file of its program, beside this one.
        modules: that its Python must be able to import.
        distributions: packages that may hold it; the first that is installed tells the version.
        meeting: how its processes find each other: a name in rendezvous.MEETINGS.
        env: environment of `perfscope bench env create` that has it.
        environment: variables that its processes need.
        one_process_because: why it trains on one process only; "" where it trains on several.
        retired: what has become of it upstream; "" where it is alive.
        channels_last: whether it is given images as (N, H, W, C).
        joins_norm: whether BatchNorm on several processes takes the samples of all of them together.
        parts_itself: whether its processes wait for one another when they end: rank 0 must not wait, too.
    """

    name: str
    summary: str
    program: str
    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    meeting: str
    env: str
    environment: Mapping[str, str] = field(default_factory=dict)
    one_process_because: str = ""
    retired: str = ""
    channels_last: bool = False
    parts_itself: bool = False
    joins_norm: bool = False

    @property
    def path(self) -> Path:
        """Of the program."""
        return Path(__file__).with_name(self.program)


def _keras(backend: str, module: str, *, meeting: str, one_process_because: str = "") -> Framework:
    how = {
        "tensorflow": "fit, compiled by XLA",
        "jax": "fit, compiled by XLA; several processes: keras.distribution.DataParallel over {backend}",
        "torch": "fit, eager; several processes: a loop with DistributedDataParallel over {backend}",
    }
    return Framework(
        name=f"keras-{backend}",
        summary=f"Keras 3 on {backend}: {how[backend]}",
        program="train_keras.py",
        modules=("keras", module),
        distributions=("keras",),
        meeting=meeting,
        env="keras",
        environment={"KERAS_BACKEND": backend},
        channels_last=True,
        joins_norm=backend == "jax",
        one_process_because=one_process_because,
    )


FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        name=FrameworkName.TORCH.value,
        summary="PyTorch: eager; several processes: DistributedDataParallel over {backend}",
        program="train_torch.py",
        modules=("torch",),
        distributions=("torch",),
        meeting="torch",
        env="torch",
    ),
    Framework(
        name=FrameworkName.TENSORFLOW.value,
        summary="TensorFlow: tf.function without XLA; several processes: MultiWorkerMirroredStrategy",
        program="train_tensorflow.py",
        modules=("tensorflow",),
        distributions=("tensorflow-cpu", "tensorflow"),
        meeting="tensorflow",
        env="tensorflow",
        channels_last=True,
    ),
    _keras(
        "tensorflow",
        "tensorflow",
        meeting="tensorflow",
        one_process_because="Keras 3's fit fails under MultiWorkerMirroredStrategy (keras issue 20585); "
        "--framework tensorflow trains on several",
    ),
    _keras("jax", "jax", meeting="jax"),
    _keras("torch", "torch", meeting="torch"),
    Framework(
        name=FrameworkName.JAX.value,
        summary="JAX: jit, compiled by XLA; several processes: shard_map with pmean over {backend}",
        program="train_jax.py",
        modules=("jax", "jaxlib"),
        distributions=("jax",),
        meeting="jax",
        env="jax",
        channels_last=True,
    ),
    Framework(
        name=FrameworkName.MXNET.value,
        summary="MXNet's Gluon, hybridized; several processes: dist_sync kvstore with 1 server",
        program="train_mxnet.py",
        modules=("mxnet",),
        distributions=("mxnet",),
        meeting="mxnet",
        env="mxnet",
        parts_itself=True,
        retired=f"retired upstream (Apache Attic, {RETIRED[FrameworkName.MXNET]})",
    ),
    Framework(
        name=FrameworkName.HOROVOD.value,
        summary="PyTorch: eager, with Horovod's DistributedOptimizer over {backend}",
        program="train_horovod.py",
        modules=("torch", "horovod"),
        distributions=("horovod",),
        meeting="horovod",
        env="horovod",
    ),
)
NAMES = tuple(framework.name for framework in FRAMEWORKS)


def find_framework(name: str) -> Framework:
    """The framework of that name.

    Raises:
        BenchError: there is none; the line names the nearest.
    """
    for framework in FRAMEWORKS:
        if framework.name == name:
            return framework
    if name == FrameworkName.KERAS:
        raise BenchError(
            "keras runs on three backends: --framework keras-tensorflow, keras-jax or keras-torch"
        )
    near = get_close_matches(name, NAMES, n=1, cutoff=0.5)
    raise BenchError(
        f"there is no framework {name!r}; "
        + (f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}")
    )
