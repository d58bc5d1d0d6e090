"""All monitors of a run."""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from echorl_core.config import OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_orchestrator.monitors.feed import Feed
from echorl_orchestrator.monitors.link import Launch
from echorl_orchestrator.monitors.rows import eval_values, step_values

ENV_WANDB_KEY = "WANDB_API_KEY"
_MAY_HOLD_SECRETS = frozenset({"args", "kwargs"})


class Monitors:
    """Tells every monitor of every step and eval; none of them can hold up or end the run."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds

    def step(self, row: Mapping[str, Any], engines: Mapping[str, Any]) -> None:
        """A step was trained. ``row``: of steps.jsonl; ``engines``: of the pool as a whole."""
        for feed in self._feeds:
            feed.put(step_values(row, engines))

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """An eval is done. ``row``: of evals.jsonl."""
        for feed in self._feeds:
            feed.put(eval_values(row))

    async def run(self) -> None:
        """Write until cancelled."""
        await asyncio.gather(*(feed.run() for feed in self._feeds), asyncio.Event().wait())

    async def close(self) -> None:
        """Write what waits; cancelled, end all processes."""
        await asyncio.gather(*(feed.close() for feed in self._feeds))


def taken_key(environ: MutableMapping[str, str]) -> str | None:
    """The API key, which then is in this process's environment no more: environments' workers inherit that."""
    return environ.pop(ENV_WANDB_KEY, None)


def launches(config: OrchestratorConfig, identity: RunIdentity, wandb_key: str | None) -> list[Launch]:
    """How each configured monitor is started."""
    about = {
        "run": identity.name,
        "uid": identity.uid,
        "attempt": identity.attempt,
        "folder": config.run_dir,
    }
    launches = []
    if config.monitors.wandb is not None:
        shown = _shown(config.model_dump(mode="json", exclude={"monitors", "run_dir", "host", "port", "engines"}))
        opening = {**about, "config": shown, "wandb": config.monitors.wandb.model_dump(mode="json")}
        launches.append(Launch("wandb", opening, {} if not wandb_key else {ENV_WANDB_KEY: wandb_key}))
    if config.monitors.tensorboard:
        launches.append(Launch("tensorboard", about))
    return launches


def _shown(value: Any) -> Any:
    """Without the arguments of users' own code: they may hold secrets."""
    if isinstance(value, dict):
        return {name: _shown(part) for name, part in value.items() if name not in _MAY_HOLD_SECRETS}
    return [_shown(part) for part in value] if isinstance(value, list) else value
