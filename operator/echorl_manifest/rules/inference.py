"""Rules of the engines: their GPUs, and arguments that are not a manifest's to give."""

import re
from collections.abc import Iterator

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding

# Arguments of `vllm serve` that follow from the manifest, or that captured tokens and logprobs rest on.
OWN_ENGINE_ARGUMENTS = (
    "--config",
    "--data-parallel-size",
    "--dtype",
    "--enable-lora",
    "--enable-scale-out",
    "--generation-config",
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
    "--override-generation-config",
    "--port",
    "--return-tokens-as-token-ids",
    "--served-model-name",
    "--speculative-config",
    "--tensor-parallel-size",
    "--tokenizer",
    "--worker-extension-cls",
    "-tp",
)


def engine_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """A model split over more GPUs than there are, arguments that EchoRL sets."""
    inference = spec.inference
    available = max(1, inference.gpus_per_replica)
    if inference.tensor_parallel is not None and inference.tensor_parallel > available:
        path = "spec.inference.tensorParallel"
        accepted = f"at most {available} (gpusPerReplica is {inference.gpus_per_replica})"
        yield finding(path, inference.tensor_parallel, accepted, also=("spec.inference.gpusPerReplica",))
    for index, argument in enumerate(inference.extra_args):
        flag = re.split(r"[=\s]", argument, maxsplit=1)[0].replace("_", "-")
        if flag in OWN_ENGINE_ARGUMENTS:
            yield finding(f"spec.inference.extraArgs[{index}]", argument, "other arguments", "EchoRL sets this itself")
