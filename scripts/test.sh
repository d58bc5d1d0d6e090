#!/usr/bin/env bash
# The tests, in four lots at the same time: two on clusters, which wait more than they work, the one with real pods for
# itself; those of programs and engines; and those of single modules, which take longest to collect.
# Spread over processes by file, so that what a file sets up is set up once; each process that meets a cluster starts its
# own. What the other lots say comes after that of programs and engines.
#   WORKERS   processes of that one, which wait for others a third of their time; default 2
set -uo pipefail
cd "$(dirname "$0")/.."
# Lots share the cores, and a second thread of a small product only waits for the first.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
outputs=$(mktemp -d)
lots=()
lot() {
  local name=$1
  shift
  .venv/bin/python -m pytest "$@" > "$outputs/$name" 2>&1 < /dev/null &
  lots+=($!)
}
lot node tests/cluster/node
lot cluster -n 2 --dist loadfile --no-loadscope-reorder tests/cluster --ignore tests/cluster/node
lot single -n 2 --dist loadfile --no-loadscope-reorder tests/unit tests/golden tests/charts
show() { cat "$outputs/node" "$outputs/cluster" "$outputs/single"; rm -rf "$outputs"; }
trap 'kill -INT "${lots[@]}" 2>/dev/null; wait "${lots[@]}"; show; exit 130' INT TERM
.venv/bin/python -m pytest -n "${WORKERS:-2}" --dist loadfile --no-loadscope-reorder tests/integration
failed=$?
for one in "${lots[@]}"; do
  wait "$one" || failed=$?
done
show
exit "$failed"
