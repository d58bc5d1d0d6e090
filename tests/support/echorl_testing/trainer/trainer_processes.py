"""Real trainer ranks as child processes."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from echorl_core.config import ModelConfig, OptimizerConfig, TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_testing.ports import free_port
from echorl_testing.trainer.fake_orchestrator import TOKEN
from echorl_testing.warm import Program
from echorl_trainer.seeded import SeededShape

TINY = SeededShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)
"""Small enough that a step takes milliseconds."""
REPOSITORY = Path(__file__).parents[4]


def trainer_config(
    run: RunDirectory, model: Path, orchestrator_url: str = "http://127.0.0.1:9", /, **other: object
) -> TrainerConfig:
    """A float32 config with Adam and a falling learning rate."""
    settings = {
        "run_dir": str(run.root),
        "orchestrator_url": orchestrator_url,
        "model": ModelConfig(path=str(model), dtype="float32", max_model_len=128, renderer="engine"),
        "seed": 3,
        "max_steps": 8,
        "seq_len": 128,
        "optimizer": OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2),
        "weight_mode": "http",
        "step_timeout_s": 60.0,
        "probe_tokens": 8,
    }
    return TrainerConfig.model_validate({**settings, **other})


class Gang:
    """All ranks of one attempt, started together; each rank's log lies beside the config."""

    def __init__(self, folder: Path, config: TrainerConfig, identity: RunIdentity | None, num_ranks: int) -> None:
        """``identity`` None: for commands that need none."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._num_ranks = folder, num_ranks
        self.config_file = folder / "trainer.json"
        config.dump(self.config_file)
        self._identity = {} if identity is None else identity.environment()
        self.processes: list[Program] = []

    def start(self, module: str, *arguments: str, environment: Sequence[dict[str, str]] = ()) -> "Gang":
        """Start ``python -m module --config ...`` on every rank; ``environment``: more variables per rank."""
        port = free_port()
        for rank in range(self._num_ranks):
            variables = {
                **{key: value for key, value in os.environ.items() if not key.startswith("ECHORL_")},
                **self._identity,
                "ECHORL_ADMIN_TOKEN": TOKEN,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(self.folder),
                **(environment[rank] if environment else {}),
            }
            self.processes.append(
                Program(
                    module,
                    ["--config", self.config_file, *arguments],
                    environment=variables,
                    output=self.log_file(rank),
                    folder=REPOSITORY,
                )
            )
        return self

    def log_file(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.log"

    def log(self, rank: int = 0) -> str:
        return self.log_file(rank).read_text()

    async def ended(self, seconds: float = 240.0) -> list[int]:
        """Exit codes of all ranks, negative for signals."""
        return await asyncio.wait_for(asyncio.gather(*(process.wait() for process in self.processes)), seconds)

    async def stop(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self.processes))
