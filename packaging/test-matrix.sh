#!/bin/sh
# test-matrix.sh WHEEL: the probe's and the readers' own tests on each Python, and on each torch whose CPU wheel the
# package index has. PYTHONS: interpreters (default: python3.10 to python3.14, those on PATH). TORCHES: versions.
# Prints the rows of the table in docs/matrix.md. torch's CUDA wheels, which are gigabytes, are never installed.
set -u
wheel=$(realpath "$1")
out=$PWD/build/matrix
rm -rf "$out" && mkdir -p "$out/check"
cp -r tests examples benchmarks docs action.yml mkdocs.yml pyproject.toml constraints.txt ./*.md "$out/check"
status=0
tested() { # INTERPRETER LABEL TESTS...: one row
    interpreter=$1 label=$2
    shift 2
    (cd "$out/check" && PATH="$(dirname "$interpreter"):$PATH" "$interpreter" -m pytest -q -n 2 -p no:cacheprovider "$@") >"$out/log" 2>&1
    code=$?
    [ $code -eq 0 ] || { cat "$out/log" >&2; status=1; }
    versions=$("$interpreter" -c 'import numpy, platform, pyarrow; print(platform.python_version(), numpy.__version__, pyarrow.__version__, sep=" | ")')
    echo "| $versions | $label | $(tail -1 "$out/log" | sed 's/ in .*//') |"
}
for python in ${PYTHONS:-python3.10 python3.11 python3.12 python3.13 python3.14}; do
    command -v "$python" >/dev/null 2>&1 || { echo "| $python | | | | not installed here |"; continue; }
    venv=$out/$(basename "$("$python" -c 'import platform; print(platform.python_version())')")
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "$wheel" hypothesis psutil pytest pytest-timeout pytest-xdist pyyaml 2>"$out/log" ||
        { cat "$out/log" >&2; status=1; continue; }
    tested "$venv/bin/python" none tests/unit/probes tests/unit/rundir tests/unit/test_lean_imports.py
    for torch in ${TORCHES:-2.1.2 2.4.1 2.8.0 2.13.0}; do
        if "$venv/bin/python" -m pip install --quiet --no-deps "torch==$torch+cpu" 2>/dev/null &&
            "$venv/bin/python" -m pip install --quiet "torch==$torch+cpu" pillow 2>/dev/null; then
            tested "$venv/bin/python" "$torch" tests/probe tests/unit/probes
        else
            echo "| | | | $torch | the package index has no CPU wheel for this Python |"
        fi
    done
done
exit $status
