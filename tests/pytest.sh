#!/bin/sh
# pytest "$@"; at most five tests that fail beside others are run once more by themselves: those that measure
# the machine may fail on a busy one. Both results are printed; a test that fails twice is a failure.
# Its own files and cache: other targets may run in the same folder at the same time. Pytest would also clean up
# what earlier runs left in a shared folder when it ends: a file system that a killed test left mounted there
# is an error after the last test.
folder=$(mktemp -d)
remove() {
  awk -v below="$folder/" 'index($2, below) == 1 { print $2 }' /proc/mounts | while read -r mount; do
    umount -l "$mount"
  done
  rm -rf "$folder"
}
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
set -- -o cache_dir="$folder/cache" --basetemp "$folder/files" "$@"
python -m pytest "$@" && exit
status=$?
[ "$status" -eq 1 ] || exit "$status"
lastfailed=$folder/cache/v/cache/lastfailed
[ -e "$lastfailed" ] || exit 1 # no test failed: pytest itself did
failed=$(python -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$lastfailed") || exit 1
[ "$failed" -le 5 ] || exit 1
echo "$failed failed: run once more by themselves"
python -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none
