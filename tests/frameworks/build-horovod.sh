#!/bin/sh
# build-horovod.sh VENV: puts Horovod 0.28.1 (gloo, for PyTorch) into a venv that has torch. It is compiled once
# per version of torch and Python; the wheel is kept in horovod/ beside the venv. Opt-in: nothing is done unless
# PERFSCOPE_BUILD_HOROVOD=1. Needs a C++ compiler and some CPU minutes; MAKEFLAGS says how many jobs (-j2).
#
# Two things differ from the release, which torch 2.1 and later need: C++17, and setuptools < 81.
set -eu
venv="${1:?usage: build-horovod.sh VENV}"
if [ "${PERFSCOPE_BUILD_HOROVOD:-0}" != 1 ]; then
    echo "Horovod is not built; PERFSCOPE_BUILD_HOROVOD=1 builds it (some minutes)" >&2
    exit 1
fi
venv="$(cd "$venv" && pwd)"
python="$venv/bin/python"
pip="$python -m pip --disable-pip-version-check --quiet"
tag="$("$python" -c 'import sys, torch; print("torch%s-py%d.%d" % (torch.__version__, *sys.version_info[:2]))')"
kept="$(dirname "$venv")/horovod/$tag"

build() {
    command -v c++ >/dev/null 2>&1 || { echo "building Horovod needs a C++ compiler" >&2; exit 1; }
    # Horovod takes the folder's name for a regular expression: one without signs such as +.
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    # The tools go beside, so that the venv stays as it is.
    $pip install --target "$work/tools" "setuptools<81" wheel "cmake<4" cloudpickle psutil pyyaml packaging cffi
    export PYTHONPATH="$work/tools" PATH="$work/tools/bin:$PATH"
    $pip download --no-deps --no-binary :all: --no-build-isolation -d "$work" horovod==0.28.1
    tar -xzf "$work/horovod-0.28.1.tar.gz" -C "$work"
    cd "$work/horovod-0.28.1"
    sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' CMakeLists.txt horovod/torch/CMakeLists.txt
    MAKEFLAGS="${MAKEFLAGS:--j2}" HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 \
        HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        "$python" setup.py bdist_wheel --dist-dir "$work" > "$work/build.log" 2>&1 ||
        { tail -40 "$work/build.log" >&2; exit 1; }
    "$python" -m zipfile -l "$work"/horovod-0.28.1-*.whl | grep -q '^horovod/torch/mpi_lib_v2.*\.so' ||
        { echo "the wheel of Horovod holds no library for torch" >&2; exit 1; }
    mkdir -p "$kept"
    mv "$work"/horovod-0.28.1-*.whl "$kept/"
}

[ -n "$(find "$kept" -name '*.whl' 2>/dev/null)" ] || (build)
"$python" -c 'import horovod.torch' 2>/dev/null && exit 0
$pip install cloudpickle psutil pyyaml packaging "setuptools<81"
$pip install --no-deps "$kept"/horovod-0.28.1-*.whl
"$python" -c 'import horovod.torch as hvd; assert hvd.gloo_built()'
