"""What a rank does in the tests of loading; importable by spawned processes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from echorl_core.config import ModelConfig
from echorl_trainer.loading import start_policy
from echorl_trainer.parallel import connect, disconnect


def config_of(folder: Path, **changes: Any) -> ModelConfig:
    """A config of a model folder."""
    settings = {"path": str(folder), "dtype": "float32", "max_model_len": 64, "renderer": "engine", **changes}
    return ModelConfig.model_validate(settings)


def loaded(folders: Sequence[Path]) -> dict[str, tuple[dict[str, str], str]]:
    """By a folder's name: digests of parameters and buffers as the ranks hold them together, and the fingerprint."""
    ranks = connect(device="cpu", timeout_s=60.0)
    found = {}
    try:
        for folder in folders:
            policy = start_policy(config_of(folder), ranks, seed=0)
            tensors = {**dict(policy.model.named_parameters()), **dict(policy.model.named_buffers())}
            stored = {name: one for name, one in tensors.items() if not name.endswith(".gate.load")}  # of no model
            found[folder.name] = {name: digest(tensor) for name, tensor in stored.items()}, policy.fingerprint
    finally:
        disconnect()
    return found


def expected(folder: Path) -> tuple[dict[str, str], str]:
    """The same of a model that transformers loads whole, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    print_ = hashlib.sha256()
    stored = {
        **dict(model.named_parameters()),
        **{n: one for n, one in model.named_buffers() if n in model.state_dict()},
    }
    for name, tensor in sorted(stored.items()):
        flat = tensor.detach().flatten()
        print_.update(f"{name} {tuple(tensor.shape)}\n".encode())
        print_.update(flat[:: max(1, flat.numel() // 256)].contiguous().numpy().data)
    digests = {name: digest(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    return digests, print_.hexdigest()


def digest(tensor: torch.Tensor) -> str:
    """sha256 of dtype, shape and bytes."""
    detached = tensor.detach()
    whole = detached.full_tensor() if isinstance(detached, DTensor) else detached
    told = f"{whole.dtype} {tuple(whole.shape)}".encode()
    return hashlib.sha256(told + whole.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def peak_of_loading(folder: Path, warm_up: Path) -> tuple[int, int]:
    """By how many bytes a rank's memory grew at most while it loaded, files it read included; bytes of its shard."""
    ranks = connect(device="cpu", timeout_s=60.0)
    try:
        start_policy(config_of(warm_up), ranks, seed=0)  # what is imported and allocated once is no part of it
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        policy = start_policy(config_of(folder), ranks, seed=0)
        grown = _memory("VmHWM") - before
        shard = sum(p.to_local().nbytes for p in policy.parameters() if isinstance(p, DTensor))
        return grown, shard
    finally:
        disconnect()


def _memory(key: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:")]
    return int(line.split()[1]) * 1024
