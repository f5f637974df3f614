#!/bin/sh
# make-mxnet-venv.sh DIRECTORY: makes a venv with MXNet, once. MXNet was retired in September 2023; its last
# release, 1.9.1, needs numpy < 2 and runs as it is with 1.23.5 on Python 3.8 to 3.11. perfscope is not
# installed in it: the probe is loaded from where perfscope is.
set -eu
venv="${1:?usage: make-mxnet-venv.sh DIRECTORY}"
[ -e "$venv/ready" ] && exit 0
for python in "${MXNET_PYTHON:-}" python3.11 python3.10 python3.9 python3.8; do
    [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 && break
    python=""
done
if [ -z "$python" ]; then
    echo "MXNet 1.9.1 needs Python 3.8 to 3.11; set MXNET_PYTHON to one" >&2
    exit 1
fi
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet mxnet==1.9.1 numpy==1.23.5
"$venv/bin/python" -W ignore -c 'import mxnet; assert mxnet.__version__ == "1.9.1"'
touch "$venv/ready"
