"""How many bytes an engine fetches for a version after a step of AdamW, beside the whole version's.

    PYTHONPATH=core:operator:orchestrator:trainer:. python3 -m benchmarks.publication.deltas --out DIR

A seeded model with float32 masters is trained on random rewards of random tokens; after every step it is published in
bfloat16 (``--dtype``) through a trainer's own HTTP server and fetched as an engine does. ``DIR/deltas.json`` gets a row
a version.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.publication.__main__ import DEADLINE_S, IDENTITY, KEY, fetched
from echorl_core.config import ModelConfig, OptimizerConfig, TrainerConfig
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_trainer.health import Health
from echorl_trainer.learner import build_learner
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.probe import probe_ids
from echorl_trainer.publish import Publisher
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.server import Server
from echorl_trainer.weights import MemoryStore


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results, the model and what is fetched")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    return parser.parse_args(arguments)


def batch(step: int, tokens: int) -> RankBatch:
    """One document of random bytes, each of which but the first has a random advantage."""
    generator = np.random.default_rng(step)
    action = np.arange(tokens) > 0
    document = MicroBatch(
        sample_ids=["random"],
        environments=["random"],
        lengths=np.array([tokens], np.int32),
        token_ids=generator.integers(0, 256, tokens).astype(np.int32),
        role=np.where(action, TokenRole.ACTION, TokenRole.CONTEXT).astype(np.uint8),
        logprobs=np.where(action, -5.58, 0.0).astype(np.float32),
        version_low=np.where(action, step - 1, -1).astype(np.int32),
        version_high=np.where(action, step - 1, -1).astype(np.int32),
        rl_weight=action.astype(np.float32),
        ce_weight=np.zeros(tokens, np.float32),
        advantage=(action * generator.normal(size=tokens)).astype(np.float32),
        temperature=np.ones(tokens, np.float32),
    )
    return RankBatch(
        run_uid=IDENTITY.uid,
        attempt=IDENTITY.attempt,
        step=step,
        rank=0,
        num_ranks=1,
        denominators={"rl": float(tokens - 1), "ce": 1.0},
        checkpoint=False,
        last=False,
        micro_batches=[document],
    )


def measure(options: argparse.Namespace, model: Path) -> list[dict[str, Any]]:
    """A row for every version but the first, which is fetched whole."""
    ranks = connect(device=options.device)
    config = TrainerConfig(
        run_dir=str(options.out / "run"),
        orchestrator_url="http://127.0.0.1:9",
        model=ModelConfig(path=str(model), dtype=options.dtype, max_model_len=options.tokens, renderer="engine"),
        seed=1,
        max_steps=options.steps,
        seq_len=options.tokens,
        optimizer=OptimizerConfig(lr=options.lr),
        weight_mode="http",
    )
    learner = build_learner(config, ranks)
    health = Health(step_timeout_s=DEADLINE_S)
    server = Server(IDENTITY, 0, health, weights_key=KEY)
    store = server.weights = MemoryStore(IDENTITY.attempt, f"http://127.0.0.1:{server.start('127.0.0.1', 0)}")
    probe = probe_ids(config.model, IDENTITY.uid, 16)
    publisher = Publisher(learner.state.policy, ranks, IDENTITY, probe_token_ids=probe, store=store, watch=health.watch)
    rows = []
    for step in range(options.steps + 1):
        if step:
            learner.runner.run(batch(step, options.tokens))
        publication = publisher.begin(step)
        assert publication is not None  # noqa: S101 - this is rank 0
        announced = publication.result()
        began = time.perf_counter()
        found = fetched(announced, options.out / "spool")
        seconds = time.perf_counter() - began
        if step:
            rows.append(
                {
                    "version": step,
                    "changed_ratio": None if announced.delta is None else announced.delta.changed_ratio,
                    "whole_bytes": announced.size_bytes,
                    "received_bytes": found.received_bytes,
                    "delta": found.delta,
                    "fetch_s": seconds,
                }
            )
    disconnect()
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The first versions, and the median of the second half, as Markdown."""
    lines = ["| version | changed | bytes | of the whole |", "|---|---|---|---|"]
    late = rows[len(rows) // 2 :]
    middle = {key: statistics.median(row[key] or 1 for row in late) for key in ("changed_ratio", "received_bytes")}
    shown = [*rows[:3], {**late[-1], **middle, "version": f"{late[0]['version']} to {late[-1]['version']}, median"}]
    for row in shown:
        changed = "?" if row["changed_ratio"] is None else f"{100 * row['changed_ratio']:.2f} %"
        times = row["whole_bytes"] / max(1, row["received_bytes"])
        lines.append(f"| {row['version']} | {changed} | {row['received_bytes']:,.0f} | 1/{times:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    model = options.out / "model"
    if not model.exists():
        write_seeded_model(model, SHAPES[options.shape], 1, tie=True)
    rows = measure(options, model)
    (options.out / "deltas.json").write_text(json.dumps(rows, indent=2))
    print(f"torch {torch.__version__}, {options.shape}, {options.dtype}, lr {options.lr:g}, {options.tokens} tokens")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
