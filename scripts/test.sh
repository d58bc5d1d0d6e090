#!/usr/bin/env bash
# The tests, in two lots at the same time: those on a cluster in one process, which wait more than they work, and all
# others spread over processes by file, so that what a file sets up is set up once. What the first lot says comes last.
#   WORKERS   processes of the second lot; default 2
set -uo pipefail
cd "$(dirname "$0")/.."
said=$(mktemp)
.venv/bin/python -m pytest tests/cluster > "$said" 2>&1 < /dev/null &
cluster=$!
trap 'kill -INT $cluster 2>/dev/null; wait $cluster; cat "$said"; rm -f "$said"; exit 130' INT TERM
.venv/bin/python -m pytest -n "${WORKERS:-2}" --dist loadfile --no-loadscope-reorder tests/integration tests/unit tests/golden tests/charts
others=$?
wait $cluster
code=$?
cat "$said"
rm -f "$said"
exit $((others ? others : code))
