#!/usr/bin/env bash
# Trains examples/gpu-smoke.yaml: a seeded 0.6 B-shaped model, one engine and one trainer rank, on one GPU or on two.
#   benchmarks/gpu_smoke.sh OUT [path=value...]
# Uses $PYTHON (default .venv/bin/python) for orchestrator and trainer, $ECHORL_INFERENCE_PYTHON for vLLM.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1; shift
python=${PYTHON:-.venv/bin/python}
[ -e runs/models/gpu-smoke/config.json ] ||
  "$python" -m echorl_trainer.seeded --out runs/models/gpu-smoke --shape 0.6b-bytes --family qwen3 --seed 1 --dtype bfloat16
arguments=(); for setting in "$@"; do arguments+=(--set "$setting"); done
"$python" -m echorl_cli run examples/gpu-smoke.yaml --out "$out" --plain "${arguments[@]}"
