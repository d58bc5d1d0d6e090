"""Whether the ranks of a pod start again where they are, from copies in memory that outlives their processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echorl_core.config import MemoryConfig, TrainerConfig
from echorl_core.memory_copies import RankMemory, Restarted, held_by_all
from echorl_core.names import ExitCode, Role
from echorl_core.restarts import Action, Death, Decision, Ledger, RestartPolicy, decide
from echorl_trainer.rank_ends import End


@dataclass
class InPlace:
    """Restarts of all ranks from what this process keeps in memory for them."""

    config: MemoryConfig
    memories: dict[int, RankMemory]
    """By rank."""
    last: Restarted | None = None
    """None: there was none yet."""
    _ledger: Ledger = field(default_factory=Ledger)

    def decide(self, ends: Sequence[End]) -> Decision | None:
        """Whether all ranks, which have ended so, start again, and when; None: a new attempt may mend it, or nothing.

        What it decides for counts as done.
        """
        failed = [end for end in ends if end.code != ExitCode.OK and not end.asked]
        held = held_by_all(self.memories)
        if not failed or held is None or any(end.code in self.config.passed_on for end in failed):
            return None
        config = self.config
        policy = RestartPolicy(config.max_restarts, config.backoff_s, config.reset_after_steps)
        deaths = [Death(Role.TRAINER, f"rank {end.rank}", end.status) for end in failed]
        self._ledger = self._ledger.after_progress(held, policy)
        decision = decide(deaths, ledger=self._ledger, policy=policy, is_held=True)
        if decision.action is not Action.RESTART_GANG:
            return None
        self._ledger = self._ledger.with_restart(Role.TRAINER, held)
        self.last = Restarted(1 if self.last is None else self.last.count + 1, decision.reason)
        return decision

    def environment(self, rank: int) -> dict[str, str]:
        """What tells a rank's process."""
        return {**self.memories[rank].environment(), **({} if self.last is None else self.last.environment())}


def restarts_in_place(config: Path, *, pods: int, ranks: int) -> InPlace | None:
    """How the ranks start again in place; None: ``checkpoint.memory`` is not set.

    Raises:
        ValueError: the ranks are in several pods.
    """
    try:
        memory = TrainerConfig.model_validate_json(config.read_text()).memory
    except (OSError, ValueError):
        return None  # what is wrong with it the ranks say
    if memory is None:
        return None
    if pods > 1:
        raise ValueError(f"{config}: memory: found {pods} pods, accepted is 1: all ranks start again together")
    return InPlace(memory, {rank: RankMemory(rank) for rank in range(ranks)})
