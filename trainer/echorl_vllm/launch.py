"""The ``vllm serve`` command line and environment of one engine, as a pure function of its config."""

import json
from dataclasses import dataclass
from pathlib import Path

from echorl_core.config import InferenceConfig, LoraConfig, SpeculativeConfig
from echorl_core.names import SERVED_MODEL_NAME
from echorl_vllm.adapter import FOLDER as ADAPTER_FOLDER
from echorl_vllm.adapter import reserved_rank
from echorl_vllm.environment import ENV_CPU_ROUTED_EXPERTS, ENV_DIE_WITH_PARENT, ENV_SPOOL, ENV_WORK
from echorl_vllm.leftovers import TEMPORARY_FOLDER

_OURS = frozenset(
    {
        *("--worker-extension-cls", "--middleware", "--api-server-count", "--port", "--host", "--served-model-name"),
        *("--enable-lora", "--no-enable-lora", "--lora-modules", "--lora-dtype", "--lora-target-modules"),
        *("--max-loras", "--max-lora-rank", "--max-cpu-loras"),
        *("--enable-return-routed-experts", "--no-enable-return-routed-experts", "--aux-output-config"),
        *("--quantization", "--quantization-config"),
        *("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens"),
    }
)
"""Options that weight updates or logprobs depend on; ``extra_args`` may not set them."""


@dataclass(frozen=True)
class Installed:
    """What the engine's Python environment has."""

    scale_out_flag: bool
    """vLLM knows ``--enable-scale-out`` (0.32); before that its generate route needs no flag."""
    flashinfer: bool

    @classmethod
    def find(cls, vllm_package: Path) -> "Installed":
        """Look at the package's files; importing vLLM would cost seconds and memory in a process that becomes it."""
        options = [vllm_package / "entrypoints" / where / "cli_args.py" for where in ("launchers", "openai")]
        return cls(
            scale_out_flag=any("enable_scale_out" in path.read_text() for path in options if path.exists()),
            flashinfer=(vllm_package.parent / "flashinfer").is_dir(),
        )


def command(
    config: InferenceConfig,
    *,
    work: Path,
    python: str,
    installed: Installed,
    spool: Path | None = None,
    temporary: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Argument list of the engine's process, and the variables that its environment gets on top.

    Args:
        config: the engine's config; its ``extra_args`` come last and win.
        work: the engine's own folder for caches and temporary files.
        python: interpreter of the environment that holds vLLM.
        installed: what that environment has.
        spool: folder for downloaded weights, to be shared by the engines of a host; None: in ``work``.
        temporary: folder for temporary files and sockets; None: in ``work``.

    Raises:
        ValueError: ``extra_args`` sets an option that weight updates or logprobs depend on; fp8 on a CPU.
    """
    if config.quantization is not None and config.device == "cpu":
        raise ValueError(f"quantization: {config.quantization}: needs a GPU, and this engine runs on a CPU")
    for argument in config.extra_args:
        # vLLM takes an option's beginning for it, and ``--a.b`` for a key of its value.
        name = argument.partition("=")[0].partition(".")[0].replace("_", "-")
        if name.startswith("--") and any(option.startswith(name) for option in _OURS):
            raise ValueError(f"extraArgs: {argument}: is set by EchoRL and cannot be changed")
    # -P: the folder that the engine is started in may hold modules of any name.
    argv = [python, "-P", "-m", "vllm.entrypoints.cli.main", "serve", config.model.path]
    argv += ["--host", config.host, "--port", str(config.port), "--served-model-name", config.served_name]
    argv += ["--dtype", config.model.dtype, "--max-model-len", str(config.model.max_model_len)]
    argv += ["--tensor-parallel-size", str(config.tensor_parallel)]
    argv += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    argv += ["--worker-extension-cls", "echorl_vllm.worker.WeightsExtension"]
    argv += ["--middleware", "echorl_vllm.middleware.EngineGate"]
    argv += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    argv += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    if config.model.lora is not None:
        argv += _adapter_options(config.model.lora, work / ADAPTER_FOLDER, config.device)
    argv += _computation_options(config)
    if installed.scale_out_flag:
        argv.append("--enable-scale-out")
    if config.device == "cpu":
        argv += ["--enforce-eager", "--max-num-seqs", "128", "--kv-cache-memory-bytes", "128M"]
        if config.tensor_parallel == 1:
            argv += ["--distributed-executor-backend", "uni"]
    variables = _environment(config, work=work, installed=installed)
    variables |= {"TMPDIR": str(temporary or work / TEMPORARY_FOLDER), ENV_SPOOL: str(spool or work / "spool")}
    return [*argv, *config.extra_args], variables


def _adapter_options(lora: LoraConfig, folder: Path, device: str) -> list[str]:
    """One adapter beside the model. Requests for ``policy`` get it; it is there from the start, so nothing else can."""
    # Only what has an adapter is wrapped: vLLM's wrapped output head fails on prompt logprobs in a batch of several.
    targets = sorted({target.rpartition(".")[2] for target in lora.target_modules})
    # On a CPU, vLLM gives tokens without an adapter the one in the last place, so that place stays empty.
    places = "2" if device == "cpu" else "1"
    module = json.dumps({"name": SERVED_MODEL_NAME, "path": str(folder)})
    options = ["--enable-lora", "--max-loras", places, "--max-cpu-loras", places]
    options += ["--max-lora-rank", str(reserved_rank(lora.rank)), "--lora-target-modules", *targets]
    return [*options, "--lora-modules", module]


def _computation_options(config: InferenceConfig) -> list[str]:
    """What changes how tokens are computed, or what is told of it."""
    options = []
    if config.speculative is not None:
        options += ["--speculative-config", _speculative(config.speculative)]
    if config.quantization == "fp8":
        # A scale for each row of weights, and for each token. 0.32 takes "fp8" for folders that are quantized already.
        options += ["--quantization", "fp8_per_channel"]
    if config.router_replay:
        options.append("--enable-return-routed-experts")
    return options


def _speculative(speculative: SpeculativeConfig) -> str:
    """As JSON for vLLM. Its way to reject guesses is the default, which keeps the policy's distribution."""
    options = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_tokens,
        "prompt_lookup_min": speculative.prompt_lookup_min,
        "prompt_lookup_max": speculative.prompt_lookup_max,
    }
    return json.dumps(options)


def _environment(config: InferenceConfig, *, work: Path, installed: Installed) -> dict[str, str]:
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(work / "cache"),
        # Clients let idle connections go first, so none is closed under a request.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        ENV_DIE_WITH_PARENT: "1",
        ENV_WORK: str(work),
    }
    if config.device == "cpu":
        # Even in eager mode the first request with logprobs would compile a helper, which needs a C++ compiler.
        variables |= {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if config.router_replay:
            variables[ENV_CPU_ROUTED_EXPERTS] = "1"
        if config.tensor_parallel == 1:
            # A worker process of its own and the engine core wait for each other in busy loops, a core each. With 0
            # the CPU platform lets the worker run inside the engine core; the API server stays a process of its own.
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    elif config.model.dtype == "float32":
        # Without these, float32 may be multiplied in TF32: logprobs of an H100 were 1e-2 nats from the trainer's, and
        # with both at most 7e-5. The two were not told apart.
        variables |= {"TRITON_F32_DEFAULT": "ieee", "NVIDIA_TF32_OVERRIDE": "0"}
    if not installed.flashinfer:
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return variables
