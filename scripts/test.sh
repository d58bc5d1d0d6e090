#!/usr/bin/env bash
# The tests, in three lots at the same time: two on clusters, which wait more than they work, the one with real pods for
# itself; and all others. Spread over processes by file, so that what a file sets up is set up once; each process that
# meets a cluster starts its own. What the lots on clusters say comes last.
#   WORKERS   processes of the third lot, which wait for others a third of their time; default 3
set -uo pipefail
cd "$(dirname "$0")/.."
# Lots share the cores, and a second thread of a small product only waits for the first.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
outputs=$(mktemp -d)
.venv/bin/python -m pytest tests/cluster/node > "$outputs/node" 2>&1 < /dev/null &
node=$!
.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/cluster --ignore tests/cluster/node > "$outputs/cluster" 2>&1 < /dev/null &
cluster=$!
show() { cat "$outputs/node" "$outputs/cluster"; rm -rf "$outputs"; }
trap 'kill -INT $node $cluster 2>/dev/null; wait $node $cluster; show; exit 130' INT TERM
.venv/bin/python -m pytest -n "${WORKERS:-3}" --dist loadfile --no-loadscope-reorder tests/integration tests/unit tests/golden tests/charts
others=$?
wait $node
of_node=$?
wait $cluster
of_cluster=$?
show
for code in $others $of_node $of_cluster; do
  [ "$code" = 0 ] || exit "$code"
done
