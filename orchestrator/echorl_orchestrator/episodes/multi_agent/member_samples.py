"""From one episode to its training units: one for each member that learns."""

from dataclasses import dataclass, replace

import msgspec

from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.attempt_outcome import EpisodeRequest
from echorl_orchestrator.episodes.multi_agent.loop import MembersProgress
from echorl_orchestrator.episodes.multi_agent.seats import MemberSession
from echorl_orchestrator.episodes.samples import Built
from echorl_orchestrator.failures import EpisodeError


def owned(built: Built, member: str) -> Built:
    """The samples with their member's name."""
    return replace(
        built, samples=[msgspec.structs.replace(one, member=member, seat="learner") for one in built.samples]
    )


@dataclass(frozen=True)
class Ended:
    """One finished attempt at an episode."""

    request: EpisodeRequest
    sessions: dict[str, MemberSession]
    """The sessions of the members that the policy plays."""
    progress: MembersProgress
    seconds: float

    def unit(self, member: str, outcome: EpisodeOutcome) -> EpisodeOutcome:
        """What ``EpisodeAttempt`` made of one member's session, as a part of the whole episode."""
        progress = self.progress
        return replace(
            outcome,
            member=member,
            reward=progress.rewards[member].reward,
            stop=progress.stop,
            truncated=progress.truncated,
            metrics=self.metrics(),
            rewards=self.rewards(),
            transcript=progress.transcript,
        )

    def whole(self, units: list[EpisodeOutcome], error: EpisodeError | None) -> EpisodeOutcome:
        """The episode that holds them; only the error's record when there is one."""
        request, progress = self.request, self.progress
        rewards = [unit.reward for unit in units if unit.reward is not None]
        columns = request.environment.state_columns
        return EpisodeOutcome(
            episode=request.episode,
            environment=request.environment.name,
            task_key=request.task_key,
            samples=[],
            reward=sum(rewards) / len(rewards) if rewards and error is None else None,
            stop=StopReason.ERROR if error else progress.stop,
            error_kind=error.kind if error else None,
            error=error.message if error else None,
            phase=progress.phase if error else None,
            num_turns=progress.turns,
            sampled_tokens=sum(session.facts.sampled_tokens for session in self.sessions.values()),
            kept_tokens=sum(unit.kept_tokens for unit in units),
            kept_branches=sum(unit.kept_branches for unit in units),
            dropped_branches=sum(unit.dropped_branches for unit in units),
            unused_branches=sum(unit.unused_branches for unit in units),
            unattributed=any(unit.unattributed for unit in units),
            version_low=min((unit.version_low for unit in units), default=0),
            version_high=max((unit.version_high for unit in units), default=0),
            truncated=progress.truncated,
            metrics=self.metrics(),
            info={name: progress.info[name] for name in columns if name in progress.info},
            seconds=self.seconds,
            units=units,
            rewards=self.rewards(),
            transcript=progress.transcript,
            parse_errors=progress.parse_errors,
        )

    def rewards(self) -> dict[str, float]:
        """The reward of each member, frozen and dropped ones included."""
        return {member: one.reward for member, one in self.progress.rewards.items()}

    def metrics(self) -> dict[str, float]:
        """What the environment measured, ``<member>/<name>``, and ``parse_errors``."""
        progress = self.progress
        found = {
            f"{member}/{name}": value for member, one in progress.rewards.items() for name, value in one.metrics.items()
        }
        return {**found, "parse_errors": float(progress.parse_errors)}
