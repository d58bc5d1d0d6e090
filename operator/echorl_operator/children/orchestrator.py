"""The orchestrator's pod: one, under one name for all attempts, re-created by the operator."""

from echorl_core import names as core_names
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator import names
from echorl_operator.children import cluster_placement as places
from echorl_operator.children import pods, storage, variables
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole

ROLE = PodRole.ORCHESTRATOR
GRACE_S = 60
"""To seal what is ready, and to commit the checkpoint of a gang that is given notice, too."""


def orchestrator_pod(target: Target, config: str) -> Object:
    """The pod without attempt. ``config``: name of the ConfigMap with its config."""
    return pods.bare_pod(target, names.orchestrator(target.name), _role(target, config))


def _wandb_key(target: Target) -> list[Object]:
    wandb = target.spec.monitors.wandb
    if wandb.project is None or wandb.secret_name is None:
        return []
    # Optional: a monitor that cannot start is no reason for the run not to.
    return [variables.secret_variable("WANDB_API_KEY", wandb.secret_name, storage.TOKEN_KEY, optional=True)]


def member_secrets(spec: EchoRLRunSpec) -> list[str]:
    """Secrets of the endpoints that play members, each once."""
    environments = (*spec.environments.train, *spec.environments.eval)
    secrets = (member.secret_name for environment in environments for member in environment.members.values())
    return sorted({name for name in secrets if name is not None})


def _role(target: Target, config: str) -> pods.Role:
    env = variables.identity(target, attempt=True, token=True)
    if (code := storage.code_path(target, ROLE)) is not None:
        env.append(variables.variable("PYTHONPATH", code))
    teacher = target.spec.algorithm.teacher
    if teacher is not None and teacher.secret_name is not None:
        env.append(variables.secret_variable(core_names.ENV_TEACHER_KEY, teacher.secret_name, storage.TOKEN_KEY))
    env += _wandb_key(target)
    env += [
        variables.secret_variable(core_names.secret_variable(secret), secret, storage.TOKEN_KEY)
        for secret in member_secrets(target.spec)
    ]
    command = ["python", "-P", "-m", "echorl_orchestrator", "--config", f"{pods.CONFIG}/orchestrator.json"]
    return pods.Role(
        role=ROLE,
        image=target.spec.orchestrator.image or target.image("orchestrator"),
        command=[*command, "--log-style", "json"],
        config=config,
        env=env,
        mounts=storage.mounts(target, ROLE),
        volumes=storage.volumes(target, ROLE),
        ports={"http": places.ORCHESTRATOR_PORT},
        probes=pods.probes(target, "/healthz", "http", unhealthy_s=pods.stall_s(target)),
        grace_s=GRACE_S,
    )
