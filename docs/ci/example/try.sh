#!/usr/bin/env bash
# A repository of one commit, a change to it, and the gate between the two, as CI would run it.
#
#   docs/ci/example/try.sh harmless            passes
#   docs/ci/example/try.sh slower-kernel       is stopped: computation, on one device too
#   docs/ci/example/try.sh extra-all-reduce    is stopped: more collectives
#   docs/ci/example/try.sh smaller-bucket      is stopped: more collectives
#
# Further arguments go to distbench gate, such as --dry-run or --minutes 5.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
change=${1:-}
patch="$here/changes/$change.patch"
if [ -z "$change" ] || [ ! -f "$patch" ]; then
    echo "try.sh: which change? one of: $(cd "$here/changes" && ls | sed 's/\.patch$//' | paste -sd' ')" >&2
    exit 2
fi
shift

reports=$PWD/reports
repository=$(mktemp -d)
trap 'rm -rf "$repository"' EXIT
cp "$here/model.py" "$here/suite.yaml" "$repository"
cd "$repository"
git init -q -b main
git add .
git -c user.name=example -c user.email=example@localhost commit -qm "The model and its suite"
git apply "$patch"
distbench gate suite.yaml --baseline main --out "$reports" "$@"
