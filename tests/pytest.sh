#!/bin/sh
# pytest "$@"; at most five tests that fail beside others are run once more by themselves: those that measure
# the machine may fail on a busy one. Both results are printed; a test that fails twice is a failure.
cache=$(mktemp -d) # its own: other targets may run in the same folder at the same time
trap 'rm -rf "$cache"' EXIT
python -m pytest -o cache_dir="$cache" "$@" && exit
status=$?
[ "$status" -eq 1 ] || exit "$status"
failed=$(python -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$cache/v/cache/lastfailed") || exit 1
[ "$failed" -le 5 ] || exit 1
echo "$failed failed: run once more by themselves"
python -m pytest -o cache_dir="$cache" "$@" -n 0 --last-failed --last-failed-no-failures none
