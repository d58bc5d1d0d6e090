"""``spec.failurePolicy`` in the terms in which supervisor and operator decide about restarts."""

from echorl_core.names import Role
from echorl_core.restarts import RestartPolicy, Rule, RuleAction
from echorl_manifest.models.run import EchoRLRunSpec


def restart_policy(spec: EchoRLRunSpec) -> RestartPolicy:
    """Limits of restarts that ``spec.failurePolicy`` sets."""
    policy = spec.failure_policy
    return RestartPolicy(policy.max_restarts, policy.backoff_seconds, policy.reset_after_steps)


def restart_rules(spec: EchoRLRunSpec) -> list[Rule]:
    """What ``spec.failurePolicy.rules`` says about exit codes."""
    from_api = spec.failure_policy.rules
    return [Rule(Role(one.role), frozenset(one.exit_codes), RuleAction(one.action)) for one in from_api]
