"""The trainer benchmark's results as text for people."""

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
Line = tuple[str, str]


def table(rows: Sequence[Row]) -> str:
    """All parts, one after the other."""
    blocks = []
    for row in rows:
        lines = _failure(row) or LAYOUTS.get(row["part"], _nothing)(row)
        width = max((len(name) for name, _ in lines), default=0)
        blocks.append("\n".join([f"== {row['part']}", *(f"  {name:<{width}}  {value}" for name, value in lines)]))
    return "\n".join(blocks)


def _failure(row: Row) -> list[Line]:
    if "skipped" in row:
        return [("skipped", row["skipped"])]
    return [("FAILED", row["failed"]), *(("", line) for line in row["traceback"][-6:])] if "failed" in row else []


def _nothing(_row: Row) -> list[Line]:
    return []


def _setup(row: Row) -> list[Line]:
    options = row["options"]
    shape = f"{options['shape']}, {'untied' if options['untied'] else 'tied'}, seed {options['seed']}"
    return [
        ("device", ", ".join(f"{name} {value}" for name, value in row["device"].items())),
        ("torch, transformers", f"{row['torch']}, {row['transformers']}"),
        ("model", f"{shape}, built in {row['build_model_s']:.1f} s"),
    ]


def _recordings(row: Row) -> list[Line]:
    lengths = row["document_tokens"]
    return [
        ("documents", f"{row['documents']}, median {lengths['median']:.0f}, longest {lengths['longest']} tokens"),
        ("made in", f"{row['load_s']:.1f} s to load, {row['forward_and_write_s']:.1f} s to score and write"),
        ("mean logprob", f"{row['mean_logprob']:.3f}"),
    ]


def _agreement(row: Row) -> list[Line]:
    lines = [
        ("tokens, documents", f"{row['tokens']}, {len(row['documents'])}"),
        ("loss rl, ce (f32)", f"{row['losses_f32']['rl']:+.6f}, {row['losses_f32']['ce']:.6f}"),
        ("loss rl, ce (bf16)", f"{row['losses_bf16']['rl']:+.6f}, {row['losses_bf16']['ce']:.6f}"),
        ("gradient norm f32, bf16", f"{row['grad_norm_f32']:.5f}, {row['grad_norm_bf16']:.5f}"),
        ("logprobs bf16 - f32", f"mean {row['logprob_mean_abs']:.2e}, max {row['logprob_max_abs']:.2e}"),
        ("relative errors", "gradient  (median tensor)  loss rl   loss ce"),
    ]
    for name, error in row["errors"].items():
        rl, ce = error["loss_rl_over_mean_advantage"], error["loss_ce"]
        value = f"{error['gradient']:.2e}  ({error['gradient_median']:.2e})       {rl:.1e}   {ce:.1e}"
        lines.append((f"  {name}", value))
    main = row["errors"]["bf16 / f32"]
    lines.append(("worst tensors", ", ".join(f"{name} {value:.1e}" for name, value in main["gradient_worst"].items())))
    bounds = f"bounds: gradient {row['gradient_bound']:.2e}, losses {row['loss_bound']:.0e}"
    return [*lines, ("agrees within bf16's error", f"{'yes' if row['agrees'] else 'NO'} ({bounds})")]


def _speed(row: Row) -> list[Line]:
    lines = [
        ("layers", f"checkpointing {row['checkpointing']}, {'compiled' if row['compiled'] else 'eager'}"),
        ("step", f"{len(row['micro_batches'])} x {row['micro_batches'][0]} tokens, {sum(row['documents'])} documents"),
        ("parameters", f"{row['parameters'] / 1e6:.0f} M"),
        ("peak memory", f"{row['peak_allocated_gib']:.1f} GiB allocated, {row['peak_reserved_gib']:.1f} GiB reserved"),
        ("matrix product", ", ".join(f"{value:.0f}" for value in row["matmul_tflops"]) + " TFLOP/s (before, after)"),
    ]
    for name, found in row["workloads"].items():
        rates = f"{found['packed_tokens_per_s']:,.0f} packed, {found['trained_tokens_per_s']:,.0f} trained tokens/s"
        share = f"{found['model_tflops']:.1f} TFLOP/s = {found['share_of_matmul']:.1%} of the product"
        parts = f"forward+backward {found['forward_backward_s']:.3f}, optimizer {found['optimizer_s']:.3f}"
        spread = f"median of {found['steps']}, spread {found['spread']:.1%}"
        lines += [(name, f"{found['step_s']:.3f} s ({spread}; {parts})"), ("", f"{rates}; {share}")]
    ratio = row["echo_over_rl"]
    return [*lines, ("rl+echo / rl", "not measured" if ratio is None else f"{ratio:.4f}")]


def _trace(row: Row) -> list[Line]:
    warned = row["sync_debug_warn"]
    counts = ("host_waits", "scalar_reads", "copies_to_host", "allocations")
    lines = [
        ("loop", f"{row['micro_batches']} micro-batches, {row['loop_ms']:.0f} ms of host time under the profiler"),
        ("sync debug mode warn", "not on a GPU" if warned is None else str(warned or 0)),
        ("sync debug mode error", row["sync_debug_error"]),
        *((f"{name.replace('_', ' ')} in the loop", str(row[name] or 0)) for name in counts),
        ("launches, aten operations", f"{row['launches']}, {row['host_operations']}"),
        ("Python calls by tokens", str(row["python_calls"])),
        ("Python calls per added token", f"{row['python_calls_per_added_token']:.4f}"),
    ]
    return [*lines, *_device(row)] if "device_busy_share" in row else lines


def _device(row: Row) -> list[Line]:
    kernels = [
        f"{each['share']:6.1%} {each['ms']:8.1f} ms {each['calls']:6d} x {each['name']}" for each in row["top_kernels"]
    ]
    return [
        ("device busy", f"{row['device_busy_share']:.1%} of the step, {row['device_ms']:.0f} ms of kernels"),
        ("time by kind", ", ".join(f"{name} {share:.1%}" for name, share in row["families"].items())),
        *(("" if index else "kernels", kernel) for index, kernel in enumerate(kernels)),
    ]


LAYOUTS: dict[str, Callable[[Row], list[Line]]] = {
    "setup": _setup,
    "recordings": _recordings,
    "agreement": _agreement,
    "speed": _speed,
    "trace": _trace,
}
