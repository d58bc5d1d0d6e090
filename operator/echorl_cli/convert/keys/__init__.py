"""Every key of prime-rl that is known, and what it becomes."""

from echorl_cli.convert.keys import conversations, environments, inference, orchestrator, run, trainer
from echorl_cli.convert.keys.row import Key

KEYS: tuple[Key, ...] = (
    *run.ROWS,
    *trainer.ROWS,
    *orchestrator.ROWS,
    *environments.ROWS,
    *inference.ROWS,
    *conversations.ROWS,
)

__all__ = ["KEYS", "Key"]
