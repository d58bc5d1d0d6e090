#!/usr/bin/env bash
# The tests, in lots at the same time: two on clusters, which wait more than they work, the one with real pods for itself;
# and all others, spread over processes by file, so that what a file sets up is set up once. Pure ones follow on the lot
# with real pods, which ends first. What the lots beside the large one say comes last.
#   WORKERS   processes of the large lot; default 2
set -uo pipefail
cd "$(dirname "$0")/.."
pure=(tests/unit/operator tests/unit/manifest tests/unit/broker tests/unit/tools tests/golden tests/charts)
outputs=$(mktemp -d)
test_in_background() { # name, arguments of pytest...
  local name=$1; shift
  .venv/bin/python -m pytest "$@" > "$outputs/$name" 2>&1 < /dev/null &
}
show() { cat "$outputs"/*; rm -rf "$outputs"; }
trap 'kill -INT $(jobs -p) 2>/dev/null; wait; show; exit 130' INT TERM
test_in_background node tests/cluster/node
node=$!
test_in_background cluster tests/cluster --ignore tests/cluster/node
cluster=$!
.venv/bin/python -m pytest -n "${WORKERS:-2}" --dist loadfile --no-loadscope-reorder tests/integration tests/unit "${pure[@]/#/--ignore=}" < /dev/null &
others=$!
wait $node
of_node=$?
test_in_background pure "${pure[@]}"
wait $!
of_pure=$?
wait $others
of_others=$?
wait $cluster
of_cluster=$?
show
for code in $of_others $of_node $of_pure $of_cluster; do
  [ "$code" = 0 ] || exit "$code"
done
