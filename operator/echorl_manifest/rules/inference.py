"""Rules of the engines: their GPUs, and arguments that are not a manifest's to give."""

import re
from collections.abc import Iterable, Iterator

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import Finding, finding

# Arguments of `vllm serve` that follow from the manifest, or that captured tokens and logprobs rest on, or that decide
# where an engine is served, to whom, and by how many processes.
OWN_ENGINE_ARGUMENTS = (
    "--api-key",
    "--api-server-count",
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


_STEMS = (
    *("api", "data-parallel", "default-mm", "dtype", "enable-lora", "enable-scale", "enable-ssl", "generation", "grpc"),
    *("headless", "logits", "logprobs", "lora", "max-cpu", "max-logprobs", "max-model", "middleware", "nnodes"),
    *("node-rank", "override", "pipeline", "port", "prefill-context", "return-tokens", "root", "served", "spec-"),
    *("speculative", "ssl", "tensor", "trust-remote", "uds", "worker"),
)
"""All that begins so is an own argument: the API server puts a price on a pattern by its length."""


def _beginnings(ends: Iterable[str]) -> str:
    """A pattern of every beginning of these, the whole ones and none at all too.

    Hyphens may be underscores; ``*`` is anything.
    """
    by_first: dict[str, list[str]] = {}
    for end in ends:
        if end:
            by_first.setdefault(end[0], []).append(end[1:])
    if "*" in by_first:
        return ".*"
    ways = [("[-_]" if first == "-" else first) + _beginnings(rest) for first, rest in sorted(by_first.items())]
    return f"({'|'.join(ways)})?" if ways else ""


def _pattern() -> str:
    names = [argument.removeprefix("--") for argument in OWN_ENGINE_ARGUMENTS]
    alone = [name for name in names if not name.startswith(_STEMS)]
    return rf"^--(no[-_])?{_beginnings([*alone, *(f'{stem}*' for stem in _STEMS)])}([=.\s]|$)"


OWN_ARGUMENT = _pattern()
"""One of these in any form that vLLM reads: cut short, with underscores, negated, a key of it alone (``--a.b=c``)."""
SHORT_ARGUMENT = r"^-[^-_.0-9]"
"""An option with one hyphen: short forms of all options may be cut short and run together with their values."""


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
        if re.search(OWN_ARGUMENT, argument):
            yield finding(path, argument, "other arguments, with their whole names", "EchoRL sets this itself")
        elif re.search(SHORT_ARGUMENT, argument):
            yield finding(path, argument, "options by their long names (--quantization for -q)")
