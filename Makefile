# Every target does its own set-up. `make help` lists them.
RUN ?= examples/quickstart.yaml
OUT ?= runs/$(basename $(notdir $(RUN)))
GPU = $(wildcard /dev/nvidia0)
ON_GPU = --set trainer.gpusPerReplica=1 --set inference.gpusPerReplica=1 --set 'inference.extraArgs=["--gpu-memory-utilization", "0.3"]'
SETTINGS ?= $(if $(GPU),$(ON_GPU))
PYTHON ?= python3
WORKERS ?= 2
PACKAGES = core/echorl_core operator/echorl_manifest operator/echorl_operator operator/echorl_broker operator/echorl_cli \
  orchestrator/echorl_prepare orchestrator/echorl_orchestrator trainer/echorl_trainer trainer/echorl_vllm trainer/echorl_collective tools examples
export PYTHON
# What is imported is compiled once and kept, not all that is installed; some containers' environments forbid to keep it.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup setup-inference warm-start run test campaign test-programs unit check fmt generate verify test-cluster cluster-up cluster-load cluster-down images package e2e clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Make the Python environments
	@scripts/setup.sh main
	@$(MAKE) -s setup-inference

setup-inference:
	@scripts/setup.sh inference
	@$(if $(GPU),scripts/setup.sh inference-cuda)

warm-start:
	@.venv/bin/python -m examples.prepare_model --manifest $(RUN)

run: ## Train from a manifest on this machine: make run [RUN=examples/quickstart.yaml] [OUT=runs/quickstart] [SETTINGS=]
	@scripts/setup.sh main
	@$(MAKE) -s -j2 setup-inference warm-start
	@.venv/bin/echorl run $(RUN) --out $(OUT) $(SETTINGS)

test: setup test-programs ## The tests, real vLLM engines and a real Kubernetes included; campaigns are sampled: make test [ECHORL_SEED=1]
	@scripts/setup.sh verifiers
	@WORKERS=$(WORKERS) scripts/test.sh

campaign: setup test-programs ## The long campaigns, every case of each: hours
	@scripts/setup.sh verifiers
	@.venv/bin/python -m pytest -m "campaign or sampled"

test-programs: ## Build and install what tests on a real Kubernetes need, once; without root nothing
	@PYTHONPATH=tests/support $(PYTHON) -m echorl_testing.cluster prepare

unit: ## Unit tests only
	@scripts/setup.sh main
	@.venv/bin/python -m pytest tests/unit

check: ## Linters, types, import contracts, generated files
	@scripts/setup.sh main
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy $(PACKAGES)
	@.venv/bin/lint-imports
	@$(MAKE) -s verify

fmt: ## Format the code
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix-only .

generate: ## Write generated files anew
	@scripts/setup.sh main
	@.venv/bin/python -m tools.losses_page docs/algorithms.md
	@.venv/bin/python -m tools.builtin_environments core/echorl_core/builtin_environments.py
	@.venv/bin/python -m tools.manifest_page > docs/manifest.md
	@.venv/bin/python -m tools.chart .
	@.venv/bin/python -m tools.migration_page > docs/migration.md
	@.venv/bin/python -m tools.operator_metrics_page > docs/operator/metrics.md
	@.venv/bin/python -m tools.metrics_page > docs/metrics.md
	@.venv/bin/python -m tools.dashboards charts/echorl/dashboards

verify: generate ## Fail when a generated file is stale
	@git diff --exit-code -- core/echorl_core/builtin_environments.py docs/algorithms.md docs/manifest.md docs/metrics.md docs/operator/metrics.md docs/install.md docs/migration.md crds charts

test-cluster: ## The operator against a real Kubernetes, as root; builds its programs once
	@scripts/setup.sh main
	@scripts/setup.sh inference
	@.venv/bin/python -m pytest tests/cluster

cluster-up: ## A real Kubernetes on this machine, as root: make cluster-up [KWOK=fake GPU nodes] [HELM=1]
	@PYTHONPATH=tests/support $(PYTHON) -m echorl_testing.cluster up --kwok $(or $(KWOK),0) $(if $(HELM),--helm)

cluster-load: ## Import built images into it: make cluster-load [IMAGES="orchestrator trainer"]
	@PYTHONPATH=tests/support $(PYTHON) -m echorl_testing.cluster load $(IMAGES)

cluster-down: ## End it and leave nothing
	@PYTHONPATH=tests/support $(PYTHON) -m echorl_testing.cluster down

e2e: setup ## Install by Helm, apply runs, disturb them, on a real node from built images, as root; transcript in runs/e2e
	@echo "e2e: environments, images and programs of a cluster; the first time some 13 GB of disk, and over an hour on 2 cores"
	@PYTHONPATH=tests/support .venv/bin/python -m echorl_testing.cluster build kube-apiserver kwok coredns helm
	@scripts/images.sh operator orchestrator trainer inference-cpu
	@.venv/bin/python -m pytest -m e2e tests/cluster/e2e
	@.venv/bin/python -m pytest -m e2e tests/cluster/node/test_coding_run.py
	@.venv/bin/python -m pytest -m e2e tests/cluster/node/test_upgrade.py

images: ## Build the images with buildah, as root: make images [IMAGES="orchestrator trainer"] [BASE=image]
	@scripts/images.sh $(IMAGES)

package: ## Charts as Helm packages, built images as archives, with checksums: make package [OUT=dist] [IMAGES="operator"|-] [HELM=]
	@scripts/package.sh $(or $(OUT),dist) $(IMAGES)

clean: ## Remove environments and caches; runs stay
	rm -rf .venv .venv-bootstrap .venv-inference .venv-inference-cuda .venv-verifiers .mypy_cache .ruff_cache .pytest_cache .hypothesis
