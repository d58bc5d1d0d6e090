"""Rules of the engines: their GPUs, and arguments that are not a manifest's to give."""

import re
from collections.abc import Iterator

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding

# Arguments of `vllm serve` that follow from the manifest, or that captured tokens and logprobs rest on, or that decide
# where an engine is served, to whom, and by how many processes.
OWN_ENGINE_ARGUMENTS = (
    "--api-key",
    "--api-server-count",
    "--aux-output-config",
    "--config",
    "--data-parallel-address",
    "--data-parallel-backend",
    "--data-parallel-external-lb",
    "--data-parallel-hybrid-lb",
    "--data-parallel-multi-port-external-lb",
    "--data-parallel-rank",
    "--data-parallel-rpc-port",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--data-parallel-supervisor-port",
    "--default-mm-loras",
    "--dtype",
    "--enable-lora",
    "--enable-return-routed-experts",
    "--enable-scale-out",
    "--enable-ssl-refresh",
    "--generation-config",
    "--grpc",
    "--grpc-port",
    "--headless",
    "--host",
    "--logits-processors",
    "--logprobs-mode",
    "--lora-dtype",
    "--lora-modules",
    "--lora-target-modules",
    "--max-cpu-loras",
    "--max-logprobs",
    "--max-lora-rank",
    "--max-loras",
    "--max-model-len",
    "--middleware",
    "--model",
    "--nnodes",
    "--node-rank",
    "--override-generation-config",
    "--pipeline-parallel-size",
    "--port",
    "--prefill-context-parallel-size",
    "--quantization",
    "--quantization-config",
    "--return-tokens-as-token-ids",
    "--root-path",
    "--served-model-name",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--speculative-config",
    "--ssl-ca-certs",
    "--ssl-cert-reqs",
    "--ssl-certfile",
    "--ssl-ciphers",
    "--ssl-keyfile",
    "--tensor-parallel-size",
    "--tokenizer",
    "--trust-remote-code",
    "--uds",
    "--worker-cls",
    "--worker-extension-cls",
)


OWN_NAMES = "".join(f"|{name}" for name in OWN_ENGINE_ARGUMENTS)
"""In one text, in which a bar and the beginning of a name are found."""
SHORT_ARGUMENT = r"^-[^-_.0-9]"
"""An option with one hyphen: short forms of all options may be cut short and run together with their values."""


def is_own_argument(argument: str) -> bool:
    """Whether vLLM reads one of ``OWN_ENGINE_ARGUMENTS``: cut short, with underscores, negated, a key of it alone."""
    name = argument.split("=", maxsplit=1)[0].split(".", maxsplit=1)[0].replace("_", "-").replace("--no-", "--")
    return argument.startswith("--") and f"|{name}" in OWN_NAMES


def engine_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """A model split over more GPUs than there are, arguments that EchoRL sets."""
    inference = spec.inference
    available = max(1, inference.gpus_per_replica)
    if inference.tensor_parallel is not None and inference.tensor_parallel > available:
        path = "spec.inference.tensorParallel"
        accepted = f"at most {available} (gpusPerReplica is {inference.gpus_per_replica})"
        yield finding(path, inference.tensor_parallel, accepted, also=("spec.inference.gpusPerReplica",))
    for index, argument in enumerate(inference.extra_args):
        path = f"spec.inference.extraArgs[{index}]"
        if is_own_argument(argument):
            yield finding(path, argument, "other arguments, with their whole names", "EchoRL sets this itself")
        elif re.search(SHORT_ARGUMENT, argument):
            yield finding(path, argument, "options by their long names (--attention-config for -ac)")
