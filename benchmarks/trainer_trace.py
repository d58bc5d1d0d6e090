"""What the loop over micro-batches makes the host do: waits for the device, and Python calls per token."""

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.trainer_bench import ADAMW, Bench, Learner
from benchmarks.trainer_workload import halved, recorded
from echorl_core.wire.batch import RankBatch
from echorl_trainer.model import Checkpointing

LOOP = "micro_batch_loop"
WAITS = {
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpy2D",
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
}  # fmt: skip
READS = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}
"""A wait where the tensor is on the device; on a host tensor, none."""
ALLOCATIONS = {"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost"}
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")
ANNOTATIONS = (LOOP, "FSDP::", "Optimizer.", "ProfilerStep")
SYNC_WARNING = "called a synchronizing"
FAMILIES = {
    "attention": r"flash|fmha|attention",
    "matrix products": r"nvjet|gemm|cutlass|xmma|matmul",
    "copies and fills": r"memcpy|memset|copy|fill|chunk_cat|split_with_sizes",
    "optimizer and norms": r"multi_tensor|adam|lpnorm|foreach",
    "reductions": r"reduce|softmax|logsumexp",
    "gather, scatter, sort": r"gather|scatter|index|sort|embedding",
    "elementwise": r"elementwise",
}


@contextmanager
def sync_mode(mode: str) -> Iterator[None]:
    """Have torch for calls that wait for the device."""
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def trace(bench: Bench, checkpointing: Checkpointing) -> None:
    """Watch a step in four ways, and report; the table of kernels goes to ``profile.txt``."""
    batch = recorded(bench.recordings / "rl+echo")
    short = msgspec.structs.replace(batch, micro_batches=batch.micro_batches[:2])
    learner = bench.learner("bfloat16", ADAMW, checkpointing=checkpointing)
    for _ in range(2):
        learner.runner.run(batch)
    warned = _sync_warnings(learner, short) if bench.cuda else None
    seen = _profiled(bench, learner, short)
    calls = _python_calls(learner, batch)
    refused = _refused_sync(learner, short) if bench.cuda else "not on a GPU"
    bench.report(
        "trace",
        micro_batches=len(short.micro_batches),
        sync_debug_warn=warned,
        sync_debug_error=refused,
        **seen,
        **calls,
    )


def _sync_warnings(learner: Learner, batch: RankBatch) -> dict[str, int]:
    """Places in the loop that wait, with how often; empty is what we want."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.runner.around = lambda: sync_mode("warn")
        try:
            learner.runner.run(batch)
        finally:
            del learner.runner.around
    places = [f"{Path(each.filename).name}:{each.lineno}" for each in caught if SYNC_WARNING in str(each.message)]
    return dict(Counter(places))


def _refused_sync(learner: Learner, batch: RankBatch) -> str:
    """The same with every wait an error; last, since an interrupted backward leaves the learner unusable."""
    learner.runner.around = lambda: sync_mode("error")
    try:
        learner.runner.run(batch)
    except RuntimeError as error:
        return f"refused: {error}"[:300]
    finally:
        del learner.runner.around
    return "none refused"


def _profiled(bench: Bench, learner: Learner, batch: RankBatch) -> dict[str, Any]:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
    learner.runner.around = lambda: record_function(LOOP)
    try:
        with profile(activities=activities, acc_events=True) as profiler:
            learner.runner.run(batch)
            bench.synchronize()
    finally:
        del learner.runner.around
    events = list(profiler.events() or [])
    order = "self_device_time_total" if bench.cuda else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=70)
    (bench.out / "profile.txt").write_text(table)
    loop = next(e for e in events if e.name == LOOP and e.device_type == DeviceType.CPU)
    inside = [e for e in events if loop.time_range.start <= e.time_range.start <= loop.time_range.end]
    host = Counter(e.name for e in inside if e.device_type == DeviceType.CPU)
    device = [e for e in events if e.device_type != DeviceType.CPU and not _annotation(e)]
    copies = Counter(e.name for e in inside if e.name.startswith("Memcpy DtoH"))
    return {
        "loop_ms": (loop.time_range.end - loop.time_range.start) / 1e3,
        "host_waits": {name: host[name] for name in sorted(WAITS) if host[name]},
        "scalar_reads": {name: host[name] for name in sorted(READS) if host[name]},
        "copies_to_host": dict(copies),
        "allocations": {name: host[name] for name in sorted(ALLOCATIONS) if host[name]},
        "launches": sum(count for name, count in host.items() if name.startswith(LAUNCHES)),
        "host_operations": sum(count for name, count in host.items() if name.startswith("aten::")),
        **(_device_time(device) if device else {}),
    }


def _annotation(event: Any) -> bool:
    """A region's shadow on the device's time line; no kernel."""
    return bool(getattr(event, "is_user_annotation", False)) or event.name.startswith(ANNOTATIONS)


def _device_time(events: Sequence[Any]) -> dict[str, Any]:
    """Where the device's time went, and the share of the step in which it had work."""
    spans = sorted((e.time_range.start, e.time_range.end) for e in events)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    totals: Counter[str] = Counter()
    families: Counter[str] = Counter()
    for event in events:
        took = event.time_range.end - event.time_range.start
        totals[event.name] += took
        families[_family(event.name)] += took
    whole = sum(totals.values())
    names = Counter(e.name for e in events)
    return {
        "device_busy_share": busy / (reached - spans[0][0]),
        "device_ms": whole / 1e3,
        "families": {name: took / whole for name, took in families.most_common()},
        "top_kernels": [
            {"name": name[:90], "ms": took / 1e3, "share": took / whole, "calls": names[name]}
            for name, took in totals.most_common(15)
        ],
    }


def _family(name: str) -> str:
    return next((family for family, form in FAMILIES.items() if re.search(form, name, re.IGNORECASE)), "other")


def _python_calls(learner: Learner, batch: RankBatch) -> dict[str, Any]:
    """Python calls of the loop's own thread, for a micro-batch with its documents cut in half and for all of it.

    On a GPU backward runs in autograd's thread and is not counted. The head's chunks are what may grow with tokens.
    """
    micro = batch.micro_batches[0]
    small = msgspec.structs.replace(batch, micro_batches=[halved(micro)])
    whole = msgspec.structs.replace(batch, micro_batches=[micro])
    counts = [_counted(learner, each) for each in (small, whole)]
    tokens = [len(each.micro_batches[0].token_ids) for each in (small, whole)]
    return {
        "python_calls": dict(zip(tokens, counts, strict=True)),
        "python_calls_per_added_token": (counts[1] - counts[0]) / max(1, tokens[1] - tokens[0]),
    }


def _counted(learner: Learner, batch: RankBatch) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    learner.runner.around = lambda: _hooked(count)
    try:
        learner.runner.run(batch)
    finally:
        del learner.runner.around
    return calls


@contextmanager
def _hooked(hook: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(None)
