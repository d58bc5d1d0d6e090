"""A model of real size on this machine's GPUs: whether a gang loads, trains and publishes it, and in what memory.

    PYTHONPATH=core:operator:orchestrator:trainer python3 -m benchmarks.rehearsal --out DIR --ranks 2

The model has a published one's shape, and values drawn from a small pool, which is quicker than to draw all. Every rank
reads its rows of it, trains steps of one pack of its own, and the first ``--serving`` ranks publish what the gang has
after each. The seconds of
each part are printed, rank 0's, and the largest peaks of any rank; ``DIR/rehearsal.json`` has the same.
``--device cpu --shape tiny`` tries the program; its times say nothing of GPUs.
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from benchmarks.long_context import Case, batch_of, run_gang
from echorl_core.config import LossConfig, ModelConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_trainer.ending import end
from echorl_trainer.health import Health
from echorl_trainer.loading import start_policy
from echorl_trainer.losses import policy_loss
from echorl_trainer.model import meta_model
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.probe import probe_ids
from echorl_trainer.publish import Publisher
from echorl_trainer.seeded import SHAPES, SeededShape, byte_tokenizer, seeded_config
from echorl_trainer.sharing import sharers_of
from echorl_trainer.step import StepRunner
from echorl_trainer.weights import MemoryStore

GIB = float(1 << 30)
POOL_VALUES = 1 << 24
FILE_BYTES = 4 << 30
IDENTITY = RunIdentity("rehearsal", "rehearsal", 1)


def write_model(folder: Path, shape: SeededShape) -> int:
    """Write config, tokenizer and bfloat16 values of a Qwen3 of this shape; how many parameters it has."""
    tokenizer = byte_tokenizer()
    config = seeded_config(shape, tokenizer, family="qwen3", tie=False)
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    pool = (torch.randn(POOL_VALUES, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16()
    files: list[dict[str, torch.Tensor]] = [{}]
    index: dict[str, str] = {}
    held = total = 0

    def write() -> None:
        name = f"model-{len(files):05d}.safetensors"
        save_file(files[-1], folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(files[-1], name))

    for name, one in meta_model(config).state_dict().items():
        if held > FILE_BYTES:
            write()
            files[-1].clear()
            files.append({})
            held = 0
        count = one.numel()
        repeats = -(-count // POOL_VALUES)
        values = torch.ones(one.shape, dtype=torch.bfloat16)
        files[-1][name] = values if one.ndim == 1 else pool.repeat(repeats)[:count].view(one.shape).clone()
        held, total = held + 2 * count, total + count
    write()
    written = {"metadata": {"total_size": 2 * total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(written))
    return total


class Clock:
    """Seconds of parts, one after the other."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def part(self, name: str) -> None:
        """What was done since the last part, on all ranks, is called so."""
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


def rehearse(case: Case, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Be one of the ranks, which torchrun's variables name."""
    device: Literal["cpu", "cuda"] = options.device
    ranks = connect(device=device, timeout_s=600.0)
    cuda = device == "cuda"
    try:
        clock = Clock(ranks)
        config = ModelConfig(
            path=str(model), dtype="bfloat16" if cuda else "float32", max_model_len=case.tokens, renderer="engine"
        )
        policy = start_policy(config, ranks, seed=0, compile=cuda, activation_checkpointing=case.checkpointing)
        adamw = OptimizerConfig(lr=1e-6, state_dtype=options.moments)
        optimizer = build_optimizer(policy, adamw)
        schedule = build_schedule(optimizer, adamw, 1000)
        clock.part("read the model")
        runner = StepRunner(policy, optimizer, schedule, policy_loss(LossConfig()), ranks, 1.0)
        vocab_size = int(policy.model.get_input_embeddings().num_embeddings)
        sharers = sharers_of(ranks.rank, options.serving, timeout_s=600.0)
        publisher = Publisher(
            policy,
            ranks,
            IDENTITY,
            probe_token_ids=probe_ids(config, IDENTITY.uid, 16),
            store=None if sharers is None else MemoryStore(1, "http://127.0.0.1:1"),
            watch=Health(step_timeout_s=600.0).watch,
            deltas=False,
            sharers=sharers,
        )
        clock.part("rooms for versions")
        for step in range(1, case.repeats + 1):
            runner.run(batch_of(case, step, vocab_size, ranks))
            clock.part(f"step {step}")
            publication = publisher.begin(step)
            clock.part(f"version {step}: the loop stands still")
            if publication is not None:
                publication.result()
            clock.part(f"version {step}: until it is visible")
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peaks: list[Any] = [None] * ranks.world_size
        dist.all_gather_object(peaks, (torch.cuda.max_memory_allocated() if cuda else 0, host))
    finally:
        disconnect()
    return {
        "seconds": clock.seconds,
        "gpu_gib": max(gpu for gpu, _ in peaks) / GIB,
        "host_gib": [round(held / GIB, 2) for _, held in peaks],
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and results")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--serving", type=int, default=1, help="ranks that share a version's files, of the first ones")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a rank's pack")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--moments", choices=["float32", "bfloat16", "int8"], default="bfloat16")
    parser.add_argument("--checkpointing", choices=["none", "selective", "full"], default="full")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    model = options.out / "model"
    case = Case(options.tokens, 1, options.ranks, options.checkpointing, options.steps)
    if options.as_rank is not None:
        found = rehearse(case, model, options)
        if os.environ["RANK"] == "0":
            options.as_rank.write_text(json.dumps(found))
        return 0
    began = time.perf_counter()
    parameters = write_model(model, SHAPES[options.shape])
    print(f"{parameters / 1e9:.2f} B parameters, written in {time.perf_counter() - began:.0f} s", flush=True)
    told = options.out / "rehearsal.json"
    codes = run_gang("benchmarks.rehearsal", [*arguments, "--as-rank", str(told)], options.ranks)
    if any(codes):
        print(f"ranks ended with codes {codes}", file=sys.stderr)
        return 1
    found = json.loads(told.read_text())
    for part, seconds in found["seconds"].items():
        print(f"| {part} | {seconds:.2f} s |")
    print(f"peak on a GPU {found['gpu_gib']:.1f} GiB, in host memory {found['host_gib']} GiB by rank")
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
