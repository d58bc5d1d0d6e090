"""What follows when a role's process ends. Pure: no clock, no processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from echorl_core.names import NEVER_RESTARTED, ExitCode, Role

MAX_BACKOFF_S = 300.0


@dataclass(frozen=True)
class RestartPolicy:
    """``spec.failurePolicy``."""

    max_restarts: int = 5
    """Restarts of each role that count, between two resets."""
    backoff_s: float = 10.0
    """Before the first restart; doubled at each further one, 300 s at the most. After a notice never more than this."""
    reset_after_steps: int = 20
    """New steps, beyond the highest one that was reached before, after which restarts count from 0 again."""


class RuleAction(StrEnum):
    """What an exit code means by a rule."""

    FAIL = "Fail"
    """The run ends."""
    RESTART = "Restart"
    """The end is a crash, whatever the code says by itself."""
    IGNORE = "Ignore"
    """The end is a crash that does not count against ``maxRestarts``."""


@dataclass(frozen=True)
class Rule:
    """One entry of ``spec.failurePolicy.rules``: what it means that a process ended by itself, or by a signal.

    A process that was ended on purpose (``Death.why``: evicted, deleted, hung) is no matter of its exit code.
    """

    role: Role
    exit_codes: frozenset[int]
    """Codes that the rule is about; that of a process which a signal ended is 128 + the signal."""
    action: RuleAction

    def matches(self, death: "Death") -> bool:
        """Whether the rule speaks of this end of a process."""
        code = death.exit_code if death.exit_code >= 0 else 128 - death.exit_code
        return death.role is self.role and death.why is None and not death.notice and code in self.exit_codes


@dataclass(frozen=True)
class Ledger:
    """Restarts since the last reset, and how far the run had come at the last of them."""

    used: Mapping[Role, int] = field(default_factory=dict)
    reached: int = 0

    def after_progress(self, highest_step: int, policy: RestartPolicy) -> "Ledger":
        """Forget restarts once the run is ``reset_after_steps`` new steps beyond them.

        Steps that are redone do not count, or a run that always dies on its way would go on for ever.
        """
        if self.used and highest_step - self.reached >= policy.reset_after_steps:
            return Ledger({}, highest_step)
        return self

    def forgiven(self) -> "Ledger":
        """Forget restarts, but not how far the run had come: somebody has seen to their cause."""
        return replace(self, used={})

    def with_restart(self, role: Role, highest_step: int, *, count: int = 1) -> "Ledger":
        """The ledger with ``count`` more restarts of ``role``, at ``highest_step`` so far."""
        return replace(self, used={**self.used, role: self.used.get(role, 0) + count}, reached=highest_step)


class Action(StrEnum):
    """What the supervisor does when a process has ended."""

    RESTART_ALONE = "restartAlone"
    """This process again, in the same attempt."""
    RESTART_GANG = "restartGang"
    """All trainer ranks again, in the same attempt, from copies in memory that outlived them."""
    NEW_ATTEMPT = "newAttempt"
    """Gang and orchestrator end, and start again at the newest committed checkpoint."""
    FAIL = "fail"
    """The run ends."""


@dataclass(frozen=True)
class Death:
    """A process that ended, or had to be killed, without having finished its work."""

    role: Role
    name: str
    exit_code: int
    """Negative: the signal that ended it."""
    why: str | None = None
    """Why it was killed, if it was."""
    message: str | None = None
    """What the process itself said of its end, if it said anything."""
    notice: bool = False
    """It was told to end, by somebody who takes its place away: no fault of the run's."""

    @property
    def cause(self) -> str:
        """One clause for people."""
        if self.message is not None:
            return f"{self.name}: {self.message}"
        if self.why is not None:
            return f"{self.name} was ended: {self.why}"
        if self.exit_code < 0:
            return f"{self.name} was ended by signal {-self.exit_code}"
        codes = {int(code): code.name.lower().replace("_", " ") for code in ExitCode}
        return f"{self.name} ended with code {self.exit_code} ({codes.get(self.exit_code, 'crash')})"


@dataclass(frozen=True)
class Decision:
    """What the supervisor is to do about an end, after which delay, and why."""

    action: Action
    reason: str
    delay_s: float = 0.0
    role: Role | None = None
    """Whose restart it is."""
    exit_code: int = int(ExitCode.CRASH)
    """The whole run's exit code, if it ends: that of what ended it if it has a meaning of its own, else a crash's."""
    counts: bool = True
    """Whether it counts against ``maxRestarts``."""
    by_rule: bool = False
    """Whether a rule of the user's ends the run."""
    notice: bool = False
    """Whether a notice was the cause, and no fault."""


def end_of_run(deaths: Sequence[Death], rules: Sequence[Rule] = ()) -> Decision | None:
    """The end of the run that one of these ends means, however many restarts are left; None if none does.

    Args:
        deaths: in any number.
        rules: of the user; the first that matches a death decides what its code means.
    """
    for death in deaths:
        action = _ruled(death, rules)
        never = death.exit_code in NEVER_RESTARTED
        if action is RuleAction.FAIL or (action is None and never):
            code = death.exit_code if never else int(ExitCode.CRASH)
            by_rule = action is RuleAction.FAIL
            reason = f"{death.cause}; a rule of failurePolicy.rules fails the run" if by_rule else death.cause
            return Decision(Action.FAIL, reason, exit_code=code, by_rule=by_rule)
    return None


def _ruled(death: Death, rules: Sequence[Rule]) -> RuleAction | None:
    return next((rule.action for rule in rules if rule.matches(death)), None)


def decide(
    deaths: Sequence[Death],
    *,
    ledger: Ledger,
    policy: RestartPolicy,
    rules: Sequence[Rule] = (),
    gang_is_whole: bool = True,
    is_held: bool = False,
) -> Decision:
    """Decide over processes that ended at about the same time.

    A code that is never restarted outweighs crashes: when one rank finds a NaN, its peers often crash first. A notice
    outweighs plain crashes too, which a peer's broken connection gives, and does not count; any other end does.

    Args:
        deaths: at least one; engines are decided one by one.
        ledger: restarts so far.
        policy: limits.
        rules: of the user; the first that matches a death decides what its code means.
        gang_is_whole: whether every trainer rank still works; the orchestrator alone is only restarted then.
        is_held: whether memory that outlived the ranks' processes holds a step of all of them.
    """
    if (end := end_of_run(deaths, rules)) is not None:
        return end
    reason = "; ".join(death.cause for death in deaths)
    roles = {death.role for death in deaths}
    role, action = Role.TRAINER, Action.NEW_ATTEMPT
    if roles == {Role.INFERENCE} or (roles == {Role.ORCHESTRATOR} and gang_is_whole):
        role, action = next(iter(roles)), Action.RESTART_ALONE
    elif is_held and roles == {Role.TRAINER} and not any(death.notice or death.why for death in deaths):
        # One that was ended as hung may be so because of where its gang stands, which memory would bring back.
        action = Action.RESTART_GANG
    if _is_notice(deaths):
        return Decision(action, reason, delay_s=policy.backoff_s, role=role, counts=False, notice=True)
    counts = any(_ruled(death, rules) is not RuleAction.IGNORE for death in deaths)
    return _within_limits(role, action, reason, ledger, policy, counts=counts)


def _is_notice(deaths: Sequence[Death]) -> bool:
    """Whether a notice explains all of these ends."""
    told = [death for death in deaths if death.notice]
    others = [death for death in deaths if not death.notice]
    return bool(told) and all(death.exit_code == ExitCode.CRASH and death.why is None for death in others)


def _within_limits(
    role: Role, action: Action, reason: str, ledger: Ledger, policy: RestartPolicy, *, counts: bool
) -> Decision:
    used = ledger.used.get(role, 0)
    if counts and used >= policy.max_restarts:
        return Decision(Action.FAIL, f"{reason}; {used} restarts of {role} are used up (failurePolicy.maxRestarts)")
    # What is mended in seconds is so at once, unless it comes again.
    doubled = used - 1 if action is Action.RESTART_GANG else used
    delay = min(policy.backoff_s * 2.0**doubled, MAX_BACKOFF_S) if doubled >= 0 else 0.0
    return Decision(action, reason, delay_s=delay, role=role, counts=counts)
