"""perfscope, built from a checkout by `spack dev-build`."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyPerfscopeHpc(PythonPackage):
    """Where a distributed training step goes, and why it does not scale."""

    license("Apache-2.0")

    version("0.1.0")

    variant("torch", default=False, description="PyTorch, for the benchmark runners")
    variant("mpi", default=False, description="mpi4py, for schemes over MPI and the MPI engine")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-junitparser@5", type=("build", "run"))
    depends_on("py-msgspec@0.18:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-nvidia-ml-py@12.535:", type=("build", "run"))
    depends_on("py-pyarrow@15:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-tomli@2:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-typst@0.13:", type=("build", "run"))

    depends_on("py-torch@2:", type=("build", "run"), when="+torch")
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")
