#!/usr/bin/env bash
# Writes anew what CI installs: the versions of constraints.txt, with the hashes that the index states. Needs uv.
#
# Not in it: torch, whose file is another one for each build, and what only torch needs (sympy, networkx, mpmath; of
# a CUDA build its libraries); httpx2-jsfetch, which is for Python in a browser.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --constraint constraints.txt \
        --custom-compile-command requirements/update.sh "$@"
}

lock - --output-file requirements/tox.txt <<< tox
lock pyproject.toml --extra test --output-file requirements/light.txt
# of the others what these lack
known=$(sed -nE 's/^([a-z0-9-]+)==.*/--no-emit-package \1/p' requirements/light.txt)
# shellcheck disable=SC2086
lock pyproject.toml --extra train --extra float8 --extra huggingface --extra optimizers --extra trackers \
    --extra accelerate --extra fabric --extra trainer --extra ray --extra test --extra lint --excludes - $known \
    --output-file requirements/py.txt \
    <<< $'torch\nhttpx2-jsfetch'
known=$(sed -nE 's/^([a-z0-9-]+)==.*/--no-emit-package \1/p' requirements/light.txt requirements/py.txt)
# shellcheck disable=SC2086
lock pyproject.toml --extra train --extra test --extra ray --extra spark --extra cluster \
    --excludes - $known --output-file requirements/cluster.txt <<< $'torch\nhttpx2-jsfetch'
# what light.txt has for some machines only (colorama for Windows), MkDocs needs on all
known=$(sed -nE 's/^([a-z0-9-]+)==[^;]*$/--no-emit-package \1/p' requirements/light.txt)
# shellcheck disable=SC2086
lock pyproject.toml --extra docs $known --output-file requirements/docs.txt

# the lowest versions that pyproject.toml allows, without float8, which needs a later torch than the lowest; the
# tools of tests are those of the others
lowest=$(mktemp -d -p /tmp)
trap 'rm -r "$lowest"' EXIT
extras=(--extra train --extra huggingface --extra optimizers --extra trackers --extra accelerate --extra fabric --extra trainer --extra bucket)
extras+=(--extra ray)
oldest() {
    uv pip compile --quiet --universal --python-version 3.11 --excludes - pyproject.toml "${extras[@]}" "$@" \
        <<< $'torch\nhttpx2-jsfetch'
}
oldest --resolution lowest-direct --no-annotate --no-header --output-file "$lowest/direct.txt"
known=$(sed -nE 's/^([a-z0-9-]+)==.*/\1/p' "$lowest/direct.txt" | sed 's/-/[-_.]/g' | paste -sd '|')
# these need a later numpy and psutil than the lowest
grep -viE "^($known|torch|ipython|pandas)==" constraints.txt > "$lowest/others.txt"
# the last one for Python 3.11 with that psutil: a lock has one version of each
echo 'ipython<9.11' >> "$lowest/others.txt"
oldest --extra test --constraint "$lowest/direct.txt" --constraint "$lowest/others.txt" --generate-hashes \
    --custom-compile-command requirements/update.sh --output-file requirements/oldest.txt
# files that no longer exist
sed -i '\| -c /tmp/|d' requirements/oldest.txt
