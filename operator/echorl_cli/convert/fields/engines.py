"""Who gets how many GPUs, and the arguments of the engines."""

import json
import re
from typing import Any

from echorl_cli.convert.draft import KEPT_OUT, NO_VERSION, Kind, ManifestDraft
from echorl_cli.convert.keys.inference import ENGINE
from echorl_cli.convert.settings import Settings
from echorl_manifest.rules.inference import OWN_ARGUMENT

GPUS_PER_NODE = 8
_GPUS, _REPLICAS = "spec.inference.gpusPerReplica", "spec.inference.replicas"


def build(settings: Settings, draft: ManifestDraft) -> None:
    """Pods and GPUs of trainer and engines, and what is passed to vLLM."""
    kind = settings.text("deployment.type") or "single_node"
    if kind not in {"single_node", "multi_node"}:
        draft.error("deployment.type", "single_node, multi_node", NO_VERSION)
        return
    node = settings.count("deployment.gpus_per_node") or GPUS_PER_NODE
    if kind == "multi_node":
        _trainer_nodes(settings, draft, node)
        key = "deployment.num_infer_nodes"
        nodes, copies = settings.count(key), settings.count("deployment.num_infer_replicas")
        if nodes is None and not settings.supervised:
            text = f"no file says how many nodes the engines have; {copies or 1} of {node} GPUs stands"
            draft.tell(Kind.TO_FILL_IN, _REPLICAS, text)
        gpus = None if settings.supervised and not nodes else (1 if nodes is None else nodes) * (copies or 1) * node
    else:
        gpus, key = settings.count("deployment.num_infer_gpus"), "deployment.num_infer_gpus"
        train = "deployment.num_train_gpus"
        draft.put("spec.trainer.gpusPerReplica", settings.count(train), train)
    _engines(settings, draft, gpus, key, node)
    _arguments(settings, draft)


def _trainer_nodes(settings: Settings, draft: ManifestDraft, node: int) -> None:
    key = "deployment.num_train_nodes"
    nodes = settings.count(key)
    draft.put("spec.trainer.replicas", nodes, key)
    draft.put("spec.trainer.gpusPerReplica", node, "deployment.gpus_per_node")
    island_key = "deployment.nodes_per_fsdp_group"
    island = settings.count(island_key)
    if island and nodes:
        if nodes % island:
            draft.error(island_key, f"a divisor of {settings.written(key)} ({nodes})")
        else:
            draft.put("spec.trainer.parallel.replicate", nodes // island, island_key)


def _engines(settings: Settings, draft: ManifestDraft, gpus: int | None, key: str, node: int) -> None:
    """An engine for each copy of the model: GPUs of all engines divided by those of one."""
    tensor_key, data_key = f"{ENGINE}.tensor_parallel_size", f"{ENGINE}.data_parallel_size"
    tensor, copies = settings.count(tensor_key), settings.count(data_key)
    size = tensor or 1
    if size > node:
        draft.say(Kind.NO_COUNTERPART, tensor_key, f"an engine is one pod, and a node has {node} GPUs")
        draft.tell(Kind.TO_FILL_IN, "spec.inference", "replicas, gpusPerReplica and tensorParallel of the engines")
        return
    if gpus is not None and gpus % size:
        draft.error(key, f"a multiple of {settings.written(tensor_key)} ({size})")
        return
    if gpus is not None and copies is not None and copies > 1 and copies * size != gpus:
        draft.error(key, f"{copies * size} GPUs", f"{settings.written(data_key)} times tensor parallel size is that")
        return
    engines = copies if gpus is None else gpus // size
    if engines == 0:
        draft.tell(Kind.TO_FILL_IN, _REPLICAS, "the files start no engines, and a run of EchoRL has its own")
        return
    draft.put(_REPLICAS, engines, data_key if gpus is None else key)
    if tensor is not None:
        draft.put(_GPUS, tensor, tensor_key)
        draft.put("spec.inference.tensorParallel", tensor, tensor_key)


def _arguments(settings: Settings, draft: ManifestDraft) -> None:
    """Whatever else the engines' table holds, as arguments of ``vllm serve``."""
    arguments = []
    for name in settings.names(ENGINE):
        key = f"{ENGINE}.{name}"
        if settings.is_known_alone(key):
            continue
        value = settings.whole(key)
        if value is None:
            continue
        argument = _argument(f"--{name.replace('_', '-')}", value)
        if re.search(OWN_ARGUMENT, argument):
            draft.say(Kind.NO_COUNTERPART, key, "EchoRL sets this argument of the engines itself")
        elif settings.hides(key):
            draft.say(Kind.NO_COUNTERPART, key, KEPT_OUT)
        else:
            arguments.append(argument)
    draft.put("spec.inference.extraArgs", arguments or None, ENGINE)


def _argument(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    return f"{flag}={value if isinstance(value, str) else json.dumps(value)}"
