"""What echorl_vllm uses of vLLM, and whether a ``vllm`` package has it: read from its sources, never imported."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from echorl_testing.sources import parsed
from echorl_vllm.middleware import GENERATION_ROUTES

REQUIREMENTS = Path(__file__).resolve().parents[4] / "requirements"
CUDA, CPU = REQUIREMENTS / "inference-cuda.txt", REQUIREMENTS / "inference-cpu.txt"

# On a GPU vLLM takes its second model runner, on a CPU its first one.
RUNNERS = ("v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py")
WORDS = {
    "worker extension": ("v1/worker/worker_base.py", ["worker_extension_cls", "load_general_plugins()"]),
    "worker's config": ("v1/worker/worker_base.py", ["self.vllm_config = vllm_config"]),
    "worker's runner": ("v1/worker/gpu_worker.py", ["self.model_runner.load_model("]),
    "model's config": ("config/model.py", ["    model: str", "    dtype: ModelDType", "    hf_text_config: "]),
    "facts of model classes": ("model_executor/models/registry.py", ['Path(envs.VLLM_CACHE_ROOT) / "modelinfos"']),
    "plugins": ("plugins/__init__.py", ['"vllm.general_plugins"']),
    "pause modes": ("v1/engine/core.py", ['PAUSED_ALL if mode == "keep"', "_reset_caches()"]),
    "remote calls": ("entrypoints/serve/dev/rpc/api_router.py", ['"/collective_rpc"', '{"results": response}']),
    "command": ("entrypoints/cli/main.py", ["def main():"]),
    "engine options": (
        "engine/arg_utils.py",
        ['"--worker-extension-cls"', '"--generation-config"', '"--kv-cache-memory-bytes"', '"--logprobs-mode"'],
    ),
    "logprobs": ("config/model.py", ["processed_logprobs"]),
    "adapters in place": ("lora/request.py", ["    lora_name: str", "    lora_int_id: int", "    load_inplace: bool"]),
    "adapters that are replaced": (
        "lora/worker_manager.py",
        ["or lora_request.load_inplace", ".remove_adapter(lora.id)"],
    ),
    "adapters' options": ("engine/arg_utils.py", ['"--enable-lora"', '"--max-loras"', '"--max-lora-rank"']),
    "adapters of some modules": ("engine/arg_utils.py", ['"--max-cpu-loras"', '"--lora-target-modules"']),
    "adapters' ranks": ("config/lora.py", ["Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]"]),
    "adapters of the first runner": (RUNNERS[0], ["LoRAModelRunnerMixin"]),
    "adapters of the second runner": (RUNNERS[1], ["LoRAModelRunnerMixin"]),
    "logprobs of the first runner": (RUNNERS[0], ["logprobs_mode=self.model_config.logprobs_mode"]),
    "logprobs of the second runner": ("v1/worker/gpu/sample/sampler.py", ["if self.logprobs_mode"]),
    "guesses": (
        "config/speculative.py",
        ["num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", 'RejectionSampleMethod = "standard"'],
    ),
    "logprobs of guesses, first runner": (
        "v1/sample/rejection_sampler.py",
        ["target_logits if self.is_processed_logprobs_mode", "temperature = expand_batch_to_tokens("],
    ),
    "logprobs of guesses, second runner": (
        "v1/worker/gpu/spec_decode/rejection_sampler.py",
        ["processed_logits if use_processed_logits"],
    ),
    "weights in fp8": ("config/quantization.py", ['"fp8_per_channel": QuantizationConfigArgs']),
}
"""By what they are: a file of the package, and texts that it holds."""
_ANYWHERE = ['"/pause"', '"/resume"', '"/is_paused"', '"/health"', '"/metrics"', "enable_prompt_tokens_details: bool"]
_ANYWHERE += ["disable_uvicorn_access_log: bool", "middleware: list[str]", "lora_modules: list[LoRAModulePath]"]
_OPTIONAL_ROUTES = {"/v1/chat/completions/batch"}
_RELOAD = "model_executor/model_loader/reload/layerwise.py"
CALLS = [
    ("config/vllm.py", "set_current_vllm_config", 1),
    (_RELOAD, "initialize_layerwise_reload", 1),
    (_RELOAD, "finalize_layerwise_reload", 2),
    (_RELOAD, "finalize_layerwise_processing", 2),
    ("v1/worker/gpu_worker.py", "Worker.add_lora", 2),
    ("v1/worker/gpu_worker.py", "Worker.list_loras", 1),
    *(
        (runner, f"GPUModelRunner.{method}", 1)
        for runner in RUNNERS
        for method in ("get_model", "reset_mm_cache", "reset_encoder_cache")
    ),
]
"""File, function, and how many arguments it is given by position (``self`` included)."""
ROUTES = {"/pause": ("mode", "clear_cache"), "/resume": (), "/abort_requests": (), "/collective_rpc": ()}
"""Routes that we call, and what stands in their queries."""


def missing(package: Path) -> list[str]:
    """What a package lacks of all that is used; empty: nothing."""
    found = []
    for what, (path, needed) in WORDS.items():
        text = (package / path).read_text() if (package / path).is_file() else ""
        found += [f"{what}: {one} in {path}" for one in needed if one not in text]
    server = "\n".join(text for _, text in _server(package))
    routes = [f'"{route}"' for route in GENERATION_ROUTES - _OPTIONAL_ROUTES]
    found += [f"entrypoints: {one}" for one in [*_ANYWHERE, *routes] if one not in server]
    return found


def signature(package: Path, path: str, name: str) -> Signature:
    """Parameters of a function, or of a method by ``Class.method``, without evaluating anything.

    Raises:
        LookupError: there is no such function.
    """
    *owners, last = name.split(".")
    body = parsed(package / path).body
    for owner in owners:
        body = next((one.body for one in body if isinstance(one, ast.ClassDef) and one.name == owner), [])
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == last:
            return _signature(one)
    raise LookupError(f"{path}: no {name}")


def route(package: Path, path: str) -> Signature:
    """Parameters of the first handler of a route.

    Raises:
        LookupError: no function is decorated as one.
    """
    for file, text in _server(package):
        if f'"{path}"' not in text:
            continue
        for one in ast.walk(parsed(file)):
            if isinstance(one, ast.AsyncFunctionDef) and any(_is_of(call, path) for call in one.decorator_list):
                return _signature(one)
    raise LookupError(f"entrypoints: no handler of {path}")


def pinned(requirements: Path, package: str) -> tuple[str, list[str]]:
    """Version and hashes of a package in a file of pinned requirements."""
    found = re.search(rf"^{package}==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", requirements.read_text(), re.MULTILINE)
    assert found is not None, f"{requirements}: no {package}"
    return found[1], re.findall(r"--hash=\S+", found[2])


def cuda_package(folder: Path) -> Path:
    """The ``vllm`` folder of the pinned CUDA wheel: from uv's cache, else from the package index. 0.8 GB."""
    version, hashes = pinned(CUDA, "vllm")
    (folder / "wanted.txt").write_text(" ".join([f"vllm=={version}", *hashes]))
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q", "--no-deps", "--require-hashes"]
    # links: nothing is unpacked twice
    command += ["--link-mode", "symlink", "--target", str(folder / "site"), "-r", str(folder / "wanted.txt")]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28", "--only-binary", "vllm"]
    subprocess.run(command, check=True, timeout=1500)
    return folder / "site" / "vllm"


def _server(package: Path) -> Iterator[tuple[Path, str]]:
    for file in sorted((package / "entrypoints").rglob("*.py")):
        yield file, file.read_text()


def _is_of(decorator: ast.expr, path: str) -> bool:
    given = decorator.args if isinstance(decorator, ast.Call) else []
    return bool(given) and isinstance(given[0], ast.Constant) and given[0].value == path


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    given = function.args
    plain: list[tuple[ast.arg, Any]] = [(one, Parameter.POSITIONAL_ONLY) for one in given.posonlyargs]
    plain += [(one, Parameter.POSITIONAL_OR_KEYWORD) for one in given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    found = [_parameter(one, kind, default) for (one, kind), default in zip(plain, defaults, strict=True)]
    if given.vararg is not None:
        found.append(_parameter(given.vararg, Parameter.VAR_POSITIONAL, None))
    found += [
        _parameter(one, Parameter.KEYWORD_ONLY, default)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg is not None:
        found.append(_parameter(given.kwarg, Parameter.VAR_KEYWORD, None))
    return Signature(found)


def _parameter(one: ast.arg, kind: Any, default: ast.expr | None) -> Parameter:
    value = Parameter.empty if default is None else ast.unparse(default)
    annotation = Parameter.empty if one.annotation is None else ast.unparse(one.annotation)
    return Parameter(one.arg, kind, default=value, annotation=annotation)
