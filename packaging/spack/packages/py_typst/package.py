"""typst for Python, which Spack's own repository does not have; cargo downloads crates to compile it."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyTypst(PythonPackage):
    """Python binding to typst."""

    homepage = "https://github.com/messense/typst-py"
    pypi = "typst/typst-0.15.0.tar.gz"

    license("Apache-2.0")

    version("0.15.0", sha256="a60231b55f0a793c2401b26577522dbf7528207407b383de3a7f0cf7fd3ce28a")

    depends_on("c", type="build")
    depends_on("rust@1.85:", type="build")
    depends_on("py-maturin@1", type="build")
    depends_on("python@3.9:", type=("build", "run"))
