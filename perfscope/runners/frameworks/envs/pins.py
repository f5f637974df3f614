"""The versions that environments are made of, in one place. All were tried on Python 3.11, CPU only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from perfscope.runners.config import BenchError

_NUMPY = "numpy==2.4.6"
_TORCH, _TENSORFLOW, _KERAS = "torch==2.13.0", "tensorflow-cpu==2.21.0", "keras==3.15.1"
_JAX = ("jax==0.10.2", "jaxlib==0.10.2")
HOROVOD_VERSION = "0.28.1"
# Its setup.py imports pkg_resources, which later setuptools do not have, and runs cmake.
_HOROVOD_NEEDS = ("setuptools<81", "wheel", "cmake<4", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What an environment is made of.

    Attributes:
        name: of the framework, as `--framework` of `bench env create` has it.
        packages: with their versions, for pip.
        oldest, newest: Python that these run on, both included.
        megabytes: that it takes on disk, about.
        imports: modules that must be importable when it is done.
        patched: a package that is built from source with a patch, see building.py; "" for none.
    """

    name: str
    packages: tuple[str, ...]
    oldest: tuple[int, int]
    newest: tuple[int, int]
    megabytes: int
    imports: tuple[str, ...]
    patched: str = ""

    @property
    def pythons(self) -> str:
        """`3.11 to 3.14`."""
        return " to ".join(".".join(map(str, version)) for version in (self.oldest, self.newest))

    def version_of(self, distributions: Sequence[str]) -> str:
        """That the first of these packages is pinned to; "" where none is."""
        pinned = dict(pin.split("==") for pin in (*self.packages, self.patched) if "==" in pin)
        return next((pinned[name] for name in distributions if name in pinned), "")


PINS: tuple[Pins, ...] = (
    Pins(
        name="torch",
        packages=(_TORCH, _NUMPY),
        oldest=(3, 11),
        newest=(3, 14),
        megabytes=1100,
        imports=("torch",),
    ),
    Pins(
        name="tensorflow",
        packages=(_TENSORFLOW, _KERAS, _NUMPY),
        oldest=(3, 11),
        newest=(3, 13),
        megabytes=1600,
        imports=("tensorflow", "keras"),
    ),
    Pins(
        name="keras",
        packages=(_KERAS, _TENSORFLOW, *_JAX, _TORCH, _NUMPY),
        oldest=(3, 11),
        newest=(3, 13),
        megabytes=3000,
        imports=("keras", "tensorflow", "jax", "torch"),
    ),
    Pins(
        name="jax",
        packages=(*_JAX, _NUMPY),
        oldest=(3, 11),
        newest=(3, 14),
        megabytes=650,
        imports=("jax",),
    ),
    Pins(
        name="mxnet",
        packages=("mxnet==1.9.1", "numpy==1.23.5"),  # MXNet uses np.bool, which later numpy does not have
        oldest=(3, 8),
        newest=(3, 11),
        megabytes=300,
        imports=("mxnet",),
    ),
    Pins(
        name="horovod",
        packages=(_TORCH, _NUMPY, *_HOROVOD_NEEDS),
        oldest=(3, 11),
        newest=(3, 11),
        megabytes=1300,
        imports=("torch", "horovod.torch"),
        patched=f"horovod=={HOROVOD_VERSION}",
    ),
)


def find_pins(name: str) -> Pins:
    """What an environment of that framework is made of.

    Raises:
        BenchError: there is none; the line names the nearest.
    """
    for pins in PINS:
        if pins.name == name or (pins.name == "keras" and name.startswith("keras-")):
            return pins
    names = [pins.name for pins in PINS]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    raise BenchError(
        f"{name!r} is no framework that an environment can be made for; "
        + (f"did you mean {near[0]}?" if near else f"name one with --framework: {', '.join(names)}")
    )
