#!/bin/sh
# system-packages.sh [LIST]: installs the packages of LIST (debian-packages.txt beside this file) when that is
# possible here; says what was left out when not.
set -u
list="${1:-$(dirname "$0")/debian-packages.txt}"
missing=""
for package in $(grep -v '^#' "$list"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "not installed (needs root and apt-get):$missing - the tests that use them are skipped"
    exit 0
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
    echo "could not install:$missing - the tests that use them are skipped"
exit 0
