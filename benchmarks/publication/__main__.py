"""Publication part by part, ours and what it was by turns, each over the copy of as many bytes to host memory.

    PYTHONPATH=core:operator:orchestrator:trainer:. python3 -m benchmarks.publication --out DIR

A seeded model is published from a trainer's rank through its own HTTP server, fetched and checked as an engine does,
and put into the parameters of a second model, which stands for the engine's. Then it trains, with publication and
without: how long the loop stands still is what a step takes more. ``DIR/publication.json`` has the medians.
"""

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from benchmarks.publication.loop import ALONE, EARLY, LATE, SIDES, WHOLE, Loop
from echorl_core.config import ModelConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import HEADER_TOKEN
from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_trainer.background import SWITCH_S, share_lock
from echorl_trainer.copier import gathered
from echorl_trainer.ending import end
from echorl_trainer.health import Health
from echorl_trainer.loading import start_policy
from echorl_trainer.lora import published_parameters
from echorl_trainer.model import Policy
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.probe import probe_ids
from echorl_trainer.publish import Publisher
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.server import Server
from echorl_trainer.weights import MemoryStore
from echorl_vllm.recording import Copies, check_equal, record
from echorl_vllm.spool import Fetched, Limits, fetch
from echorl_vllm.validation import open_tensors

IDENTITY = RunIdentity("benchmark", "benchmark", 1)
KEY = "key"
FLOOR = "floor: copy to host memory"
DEADLINE_S = 300.0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results, the model and what is fetched")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a micro-batch of the steps")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step")
    parser.add_argument("--switch-s", type=float, default=SWITCH_S, help="after which Python's lock is given away")
    parser.add_argument("--eager", action="store_true", help="layers are not compiled, as they are on CUDA by default")
    parser.add_argument("--seed", type=int, default=1, help="of the batch")
    return parser.parse_args(arguments)


class Clock:
    """Seconds of the parts of every turn but the first, which warms up."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.warming = True
        self._device = device

    def settle(self) -> None:
        """Wait for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def note(self, part: str, seconds: float) -> None:
        """Take a part's time."""
        if not self.warming:
            self.seconds[part].append(seconds)

    def time(self, part: str, work: Callable[[], Any]) -> Any:
        """Do the work and take its time, the device's included."""
        self.settle()
        began = time.perf_counter()
        found = work()
        self.settle()
        self.note(part, time.perf_counter() - began)
        return found


class Engine(nn.Module):
    """Parameters that are loaded tensor by tensor, as vLLM's are where nothing is fused."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._named = {
            name: nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for name, shape in shapes.items()
        }
        self._held = nn.ParameterList(self._named.values())

    def held(self) -> dict[str, Tensor]:
        """Parameters by the names of what is loaded into them."""
        return dict(self._named)

    def load_weights(self, tensors: Any) -> None:
        """Copy every tensor."""
        for name, tensor in tensors:
            self._named[name].data.copy_(tensor)


@torch.no_grad()
def weights(policy: Policy) -> dict[str, Tensor]:
    """Copies of what is to be published, on the device."""
    parameters = published_parameters(policy).items()
    return {name: gathered(one, policy.dtype).to(policy.dtype, copy=True) for name, one in parameters}


@torch.no_grad()
def change(policy: Policy) -> None:
    """Make every weight another one."""
    for parameter in policy.parameters():
        parameter.neg_()


def former(policy: Policy) -> bytes:
    """What the loop did: gather tensor by tensor, serialise, hash; it wrote the bytes to a file as well."""
    held = {}
    with torch.no_grad():
        for name, parameter in published_parameters(policy).items():
            held[name] = gathered(parameter, policy.dtype).to(policy.dtype).to("cpu", copy=True)
    data: bytes = save(held, metadata={"format": "pt"})
    hashlib.sha256(data).hexdigest()
    return data


def floor(host: Tensor, flat: Tensor) -> None:
    """Copy as many bytes as a version has from the device to pinned memory."""
    host.copy_(flat, non_blocking=True)


def fetched(announced: PolicyAnnouncement, spool: Path) -> Fetched:
    """Download and check a version as an engine's worker does."""
    request = StageRequest(
        attempt=1, version=announced.version, url=announced.url, digest=announced.digest, deadline_s=DEADLINE_S
    )
    limits = Limits(deadline=time.monotonic() + DEADLINE_S)
    spool.mkdir(exist_ok=True)
    return fetch(spool, request, run_uid=IDENTITY.uid, headers={HEADER_TOKEN: KEY}, limits=limits)


def measure(policy: Policy, ranks: Ranks, probe: list[int], options: argparse.Namespace) -> Clock:
    """All turns."""
    health = Health(step_timeout_s=DEADLINE_S)
    server = Server(IDENTITY, 0, health, weights_key=KEY)
    store = server.weights = MemoryStore(1, f"http://127.0.0.1:{server.start('127.0.0.1', 0)}")
    make = partial(Publisher, policy, ranks, IDENTITY, probe_token_ids=probe, watch=health.watch)
    publisher = make(store=store)
    shapes = {name: tuple(one.shape) for name, one in published_parameters(policy).items()}
    engine = Engine(shapes, policy.dtype, ranks.device)
    flat = torch.zeros(sum(one.nbytes for one in engine.parameters()), dtype=torch.uint8, device=ranks.device)
    host = torch.empty(len(flat), dtype=torch.uint8, pin_memory=ranks.device.type == "cuda")
    clock, copies = Clock(ranks.device), None
    for turn in range(options.repeats + 1):
        clock.warming = turn == 0
        clock.time(FLOOR, partial(floor, host, flat))
        clock.time("former: gather, serialise, sha256", partial(former, policy))
        expected = weights(policy)
        clock.settle()
        began = time.perf_counter()
        publication = publisher.begin(turn, probe=False)
        begun = time.perf_counter()
        clock.note("the call that begins it", begun - began)
        publisher.probe()
        clock.note("the call that launches the probe, nothing to wait for", time.perf_counter() - begun)
        assert publication is not None  # noqa: S101 - this is rank 0
        # As the next step does, while copies may be under way.
        change(policy)
        announced = publication.result()
        clock.note("update to visible", time.perf_counter() - began)
        found = clock.time("engine: fetch and check", partial(fetched, announced, options.out / "spool"))
        tensors = open_tensors(found.folder, found.manifest)
        clock.time("engine: load tensor by tensor", partial(engine.load_weights, tensors.items()))
        if copies is None:
            pieces = record(dict(engine.named_parameters()), engine.load_weights, tensors)
            check_equal(pieces, tensors)
            copies = Copies(pieces)
        for held in engine.parameters():
            held.data.zero_()
        clock.time("engine: stage on the device", partial(copies.stage, tensors))
        clock.time("engine: replay", copies.replay)
        for name, parameter in engine.held().items():
            if not torch.equal(parameter, expected[name]):
                raise AssertionError(f"{name}: the engine holds something else than was published")
    publishers = {EARLY: publisher, LATE: publisher, WHOLE: make(store=MemoryStore(2, ""), deltas=False)}
    compare(clock, Loop(policy, ranks, publishers, options, first=options.repeats + 1), options.repeats)
    return clock


def compare(clock: Clock, loop: Loop, repeats: int) -> None:
    """What steps take more when their versions are published."""
    for turn in range(repeats + 1):
        clock.warming = turn == 0
        alone = loop.alone()
        clock.note(ALONE, alone)
        for side in SIDES:
            clock.note(f"the loop stands still, {side}", loop.publishing(side) - alone)
            clock.note(f"update to visible, {side}", statistics.median(loop.visible.pop(side)))
            clock.note(f"the longest call that begins it, {side}", max(loop.called.pop(side)))


def table(seconds: dict[str, list[float]]) -> str:
    """Medians, spreads, and ratios to the floor, as Markdown."""
    least = statistics.median(seconds[FLOOR])
    lines = ["| | ms | over floor | spread |", "|---|---|---|---|"]
    for part, found in seconds.items():
        middle = statistics.median(found)
        spread = (max(found) - min(found)) / middle
        lines.append(f"| {part} | {1e3 * middle:.3g} | {middle / least:.3g} | {100 * spread:.0f} % |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    share_lock(options.switch_s)
    options.out.mkdir(parents=True, exist_ok=True)
    model = options.out / "model"
    if not model.exists():
        write_seeded_model(model, SHAPES[options.shape], 1, tie=True)
    ranks = connect(device=options.device)
    dtype = getattr(torch, options.dtype)
    config = ModelConfig(path=str(model), dtype=options.dtype, max_model_len=64, renderer="engine")
    compiled = options.device == "cuda" and not options.eager
    policy = start_policy(config, ranks, seed=1, compile=compiled, activation_checkpointing="selective")
    probe = probe_ids(config, IDENTITY.uid, 16)
    clock = measure(policy, ranks, probe, options)
    medians = {part: statistics.median(found) for part, found in clock.seconds.items()}
    (options.out / "publication.json").write_text(json.dumps(medians, indent=2))
    size = sum(one.numel() for one in published_parameters(policy).values()) * dtype.itemsize
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, {options.shape}, {options.dtype}, {size / 1e9:.3g} GB")
    print(table(clock.seconds))
    disconnect()
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
