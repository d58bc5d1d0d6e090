#!/usr/bin/env bash
# Pins every environment: requirements/NAME.in -> requirements/NAME.txt with hashes and without download addresses.
# usage: requirements/compile.sh [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
common=(-q --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command requirements/compile.sh)
for name in "${@:-bootstrap operator orchestrator trainer torch dev inference-cpu inference-cuda env-verifiers}"; do
  for one in $name; do
    case "$one" in
      # vLLM's wheels exist for this platform only, so a universal resolution has no answer.
      inference-cpu) extra=(--python-version 3.11 --python-platform x86_64-manylinux_2_28 --override requirements/inference-cpu.overrides.txt) ;;
      inference-cuda) extra=(--python-version 3.11 --python-platform x86_64-manylinux_2_28) ;;
      orchestrator) extra=(--universal --python-version 3.11 --override requirements/orchestrator.overrides.txt) ;;
      *) extra=(--universal --python-version 3.11) ;;
    esac
    "$uv" pip compile "${common[@]}" "${extra[@]}" -o "requirements/$one.txt" "requirements/$one.in"
  done
done
