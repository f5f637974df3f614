#!/bin/sh
# check-dist.sh PYTHON: builds the wheel and the sdist, and checks what would be uploaded. Run in the root of a
# checkout with a PYTHON that has `build`, setuptools, twine and check-wheel-contents. Writes below build/check-dist.
set -eu
python=$(realpath -s "$(command -v "$1")") # builds run in other folders; -s: a link to the interpreter is the environment
out=$PWD/build/check-dist
rm -rf "$out"
mkdir -p "$out"
# Archives carry no time of their own: that of the commit, and where there is no git, a fixed one.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1767225600)}
export SOURCE_DATE_EPOCH

# Each build has a copy of its own, with what git tracks: nothing left of an earlier build gets in.
copied() {
    mkdir -p "$out/$1"
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C "$out/$1"
    else
        tar -c --exclude=./build . | tar -x -C "$out/$1"
    fi
}
built() { # FOLDER OUT [OPTION]: the log is shown only where a build fails
    (cd "$1" && "$python" -m build --no-isolation --outdir "$2" ${3:+"$3"} .) >"$2.log" 2>&1 || { cat "$2.log"; exit 1; }
}
# setuptools writes the times of the files and of the build into an sdist: it is packed again without them.
sdist_built() { # FOLDER OUT
    built "$1" "$2" --sdist
    name=$(basename "$2"/*.tar.gz .tar.gz)
    mkdir "$2/files"
    tar -xzf "$2/$name.tar.gz" -C "$2/files"
    tar -c --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX -C "$2/files" "$name" | gzip -n -9 >"$2/$name.tar.gz"
    rm -r "$2/files"
}
same() {
    cmp "$1" "$2" || { echo "check-dist: $3 differ" >&2; exit 1; }
    echo "identical: $3"
}

for one in first second; do
    copied "$one"
    sdist_built "$out/$one" "$out/$one-sdist"
    built "$out/$one" "$out/$one-wheel" --wheel
done
sdist=$(basename "$out"/first-sdist/*.tar.gz)
wheel=$(basename "$out"/first-wheel/*.whl)
same "$out/first-sdist/$sdist" "$out/second-sdist/$sdist" "two builds of the sdist"
same "$out/first-wheel/$wheel" "$out/second-wheel/$wheel" "two builds of the wheel"

mkdir "$out/unpacked"
tar -xzf "$out/first-sdist/$sdist" -C "$out/unpacked" --strip-components 1
built "$out/unpacked" "$out/from-sdist" --wheel
same "$out/first-wheel/$wheel" "$out/from-sdist/$wheel" "the wheels of the checkout and of the sdist"

"$python" -m twine check --strict "$out/first-sdist/$sdist" "$out/from-sdist/$wheel"
"$python" -m check_wheel_contents "$out/from-sdist/$wheel"

"$python" -m venv "$out/venv"
"$out/venv/bin/python" -m pip install --disable-pip-version-check --quiet -c constraints.txt "$out/from-sdist/$wheel"
cd "$out" # not the checkout: the installed package must answer
"$out/venv/bin/perfscope" --version
cp "$out/first-sdist/$sdist" "$out/first-wheel/$wheel" "$out"
echo "checked: build/check-dist/$sdist, build/check-dist/$wheel"
