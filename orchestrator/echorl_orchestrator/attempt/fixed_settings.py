"""Settings that a run keeps for its whole life: what a state was made with is what a later attempt must have.

A cluster's API server refuses such a change of the spec. A run directory that is gone on with has no such guard, and
the data, the random numbers and the tokens of a run would silently be those of another one from that step on.
"""

from collections.abc import Mapping

from echorl_core.config import EnvironmentConfig, OrchestratorConfig
from echorl_orchestrator.failures import BadInputError


def fixed_settings(config: OrchestratorConfig) -> dict[str, str]:
    """The settings by their names in the manifest; weights and optimizer stand in the trainer's part of checkpoints."""

    def types(kind: str, environments: list[EnvironmentConfig]) -> dict[str, str]:
        return {f"spec.environments.{kind}[{environment.name}].type": environment.type for environment in environments}

    return {
        "spec.seed": str(config.seed),
        "spec.algorithm.mode": config.batch.mode,
        "spec.model.dtype": config.model.dtype,
        "spec.model.renderer": config.model.renderer,
        **types("train", config.train),
        **types("eval", [evaluation.environment for evaluation in config.evals]),
    }


def check_fixed(saved: Mapping[str, str], config: OrchestratorConfig, where: str) -> None:
    """What is saved is as the role was started. What only one of the two has is no change: environments come and go.

    Raises:
        BadInputError: names each that differs, what was saved and what this attempt has.
    """
    now = fixed_settings(config)
    changed = [
        f"{name}: found {now[name]!r}, the run was started with {value!r}"
        for name, value in saved.items()
        if name in now and now[name] != value
    ]
    if changed:
        raise BadInputError(f"{where}: {'; '.join(changed)}; accepted is no change: another value takes a new run")
