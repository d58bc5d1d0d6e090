"""Weights & Biases: one run for all roles and attempts, under the id that is the run's uid."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from echorl_orchestrator.monitors.rows import Row

START_S = 240.0
"""Of the client's own; shorter than a feed waits, so that its reason is told."""


class WandbSink:
    """Writes rows to one run. The API key comes from ``WANDB_API_KEY``, which only this process has."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        """Open the run, or go on with it.

        Args:
            opening: ``run``, ``uid``, ``folder`` (of the run), ``config`` (to show), ``wandb`` (a WandbConfig).

        Raises:
            Exception: whatever the client raises.
        """
        chosen = opening["wandb"]
        folder = Path(opening["folder"]) / "wandb"
        # The client would go to a temporary folder in silence.
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=chosen["project"],
            entity=chosen["entity"],
            id=opening["uid"],
            name=opening["run"],
            resume="allow",
            mode=chosen["mode"],
            dir=str(folder.parent),
            config=opening["config"],
            settings=_settings(chosen["base_url"]),
        )
        self._defined: set[str] = set()

    def write(self, row: Row) -> None:
        """Log one row. W&B's own step only counts rows: an eval, or a step that is trained again, is no step back."""
        for name in sorted(row.values.keys() - self._defined):
            # One by one: patterns would have the client put the last training step beside an eval's.
            self._run.define_metric(name, step_metric=row.axis)
        self._defined |= row.values.keys()
        self._run.log({**row.values, row.axis: row.at})

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


def _settings(base_url: str | None) -> wandb.Settings:
    """Metrics alone: no console, code, git, requirements, host facts or system metrics of this process."""
    server = {} if base_url is None else {"base_url": base_url}
    return wandb.Settings(
        init_timeout=START_S,
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        **server,
    )
