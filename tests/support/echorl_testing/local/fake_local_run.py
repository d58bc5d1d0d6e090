"""A supervised run whose roles are ``fake_role.py``: ``fake_local_run.py DIR JSON``.

JSON: ``engines``, ``ranks``, ``max_steps``, ``restart_policy`` and ``limits`` (fields of the dataclasses), ``rules``
(each role, exit codes and action); ``memory``, whether ranks have slots in memory; ``ports`` of the orchestrator and
the engines, and then the roles are scripts.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from echorl_cli.local.launch import Devices, Limits, LocalRun
from echorl_cli.local.lock import held
from echorl_cli.local.notes import end_leftovers
from echorl_cli.local.output import outlive_readers
from echorl_cli.local.supervisor import Supervisor
from echorl_cli.local.view import PlainView
from echorl_core import config
from echorl_core.attempts import claim_run
from echorl_core.names import Role
from echorl_core.restarts import RestartPolicy, Rule, RuleAction
from echorl_core.rundir import RunDirectory
from echorl_testing.local.scripted_roles import ScriptedCommands
from echorl_testing.ports import free_ports

_ROLE = str(Path(__file__).with_name("fake_role.py"))


def say(text: str) -> None:
    """Print for the test that reads our output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class FakeCommands:
    """Every role is the same script."""

    def inference(self, config: Path, work: Path) -> Sequence[str]:
        return [sys.executable, _ROLE, "inference", str(config)]

    def orchestrator(self, config: Path) -> Sequence[str]:
        return [sys.executable, _ROLE, "orchestrator", str(config)]

    def trainer(self, config: Path) -> Sequence[str]:
        return [sys.executable, _ROLE, "trainer", str(config)]


def role_configs(
    root: Path, *, ports: list[int], metrics_port: int, ranks: int, max_steps: int, memory: bool
) -> config.RoleConfigs:
    """Configs with free ports, and nothing else that a fake reads."""
    port, *engine_ports = ports
    model = config.ModelConfig(path="model", dtype="float32", max_model_len=64, renderer="compact")
    orchestrator = config.OrchestratorConfig(
        run_dir=str(root),
        port=port,
        model=model,
        seed=0,
        max_steps=max_steps,
        batch=config.BatchConfig(group_size=2, batch_size=2, max_staleness=1, seq_len=64, num_ranks=ranks),
        train=[],
        engines=config.EngineDiscovery(names=[f"127.0.0.1:{engine}" for engine in engine_ports]),
        weight_mode="http",
        checkpoint=config.CheckpointConfig(interval=1, keep_last=1),
        update_deadline_s=1.0,
    )
    trainer = config.TrainerConfig(
        run_dir=str(root),
        orchestrator_url=f"http://127.0.0.1:{port}",
        model=model,
        seed=0,
        max_steps=max_steps,
        seq_len=64,
        weight_mode="http",
        metrics_port=metrics_port,
        memory=config.MemoryConfig(limit_bytes=1) if memory else None,
    )
    inference = [config.InferenceConfig(model=model, served_name="policy", port=engine) for engine in engine_ports]
    return config.RoleConfigs(orchestrator=orchestrator, trainer=trainer, inference=inference)


def main() -> int:
    root, chosen = Path(sys.argv[1]), json.loads(sys.argv[2])
    outlive_readers()
    with held(root):
        if (leftovers := end_leftovers(root, grace_s=0.5)) is not None:
            say(f"leftovers: {[stat.pid for stat in leftovers.ended]}, copied from {leftovers.copied_from}")
        run = RunDirectory(root)
        record = claim_run(run, "fake", os.urandom(4).hex())
        ranks, engines, scripted = chosen.get("ranks", 2), chosen.get("engines", 1), "ports" in chosen
        metrics_port = 0 if scripted else free_ports(ranks)[0]
        ports = chosen.get("ports") or free_ports(1 + engines)
        plan = LocalRun(
            run=run,
            name=record.name,
            uid=record.uid,
            configs=role_configs(
                root,
                ports=ports,
                metrics_port=metrics_port,
                ranks=ranks,
                max_steps=chosen.get("max_steps", 10),
                memory=chosen.get("memory", False),
            ),
            commands=ScriptedCommands() if scripted else FakeCommands(),
            devices=Devices(engines=("",) * engines, trainer=""),
            restart_policy=RestartPolicy(**chosen.get("restart_policy", {})),
            rules=[Rule(Role(one[0]), frozenset(one[1]), RuleAction(one[2])) for one in chosen.get("rules", [])],
            limits=Limits(**chosen.get("limits", {})),
            environment={**os.environ, "FAKE_RUN": str(root)},
        )
        outcome = asyncio.run(Supervisor(plan, PlainView(Console())).run())
    say(f"outcome: {outcome}")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
