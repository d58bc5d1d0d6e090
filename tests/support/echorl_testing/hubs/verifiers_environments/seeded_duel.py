"""The task set of ``seeded_tasks`` for two agents at once."""

import verifiers.v1 as vf
from seeded_tasks import Sums

__all__ = ["Duel", "Sums"]


class DuelConfig(vf.EnvConfig):
    """Who takes part."""

    left: vf.AgentConfig = vf.AgentConfig()
    right: vf.AgentConfig = vf.AgentConfig()


class Duel(vf.Env[DuelConfig]):
    """See the module."""

    async def run(self, task, agents):
        """One after the other."""
        await agents.left.run(task)
        await agents.right.run(task)
