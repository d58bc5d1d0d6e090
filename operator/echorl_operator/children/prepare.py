"""The pod that prepares an attempt: once all writers of the last one are gone, before GPUs are asked for.

It runs in the orchestrator's image: that one is small, needs no GPU, and imports what the manifest's hooks import
(environments, filters, advantages all run in the orchestrator). A hook that runs in trainer ranks would need theirs.
"""

from echorl_core.config import ModelSource, PrepareConfig, RoleConfigs
from echorl_manifest.models.model import is_path
from echorl_manifest.models.runtime import Resume
from echorl_operator.children import cluster_placement as places
from echorl_operator.children import pods, storage, variables
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole

ROLE = PodRole.PREPARE


def prepare_config(target: Target, configs: RoleConfigs) -> PrepareConfig:
    """What prepare needs but identity, resume policy and the hub's token."""
    model = target.spec.model
    fetched = not is_path(model.name)
    code = storage.code_path(target, ROLE)
    return PrepareConfig(
        run_dir=places.run_directory(target.name),
        model=ModelSource(
            name=model.name,
            revision=model.revision if fetched else None,
            path=f"{places.VOLUME}/{places.model_folder(target.run)}",
            store=f"{places.VOLUME}/{places.FETCHED_MODELS}" if fetched else None,
        ),
        python_path=[] if code is None else [code],
        orchestrator=configs.orchestrator,
        trainer=configs.trainer,
    )


def prepare_pod(target: Target, config: str) -> Object:
    """The pod without attempt and resume policy; its name gets the attempt. ``config``: name of its ConfigMap."""
    return pods.bare_pod(target, f"{target.name}-{ROLE}", _role(target, config))


def resume_arguments(resume: Resume | None) -> list[str]:
    """Arguments that say where an attempt begins; None: at the newest checkpoint, if there is one."""
    if resume is None:
        return ["--policy", "Auto"]
    step = [] if resume.step is None else ["--step", str(resume.step)]
    return ["--policy", resume.policy, *step, "--on-existing", resume.on_existing]


def _role(target: Target, config: str) -> pods.Role:
    env = variables.identity(target, attempt=True, token=False)
    if (code := storage.code_path(target, ROLE)) is not None:
        env.append(variables.variable("PYTHONPATH", code))
    if target.settings.hub_endpoint is not None:
        env.append(variables.variable("HF_ENDPOINT", target.settings.hub_endpoint))
    if (token := storage.hub_token(target)) is not None:
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}})
    return pods.Role(
        role=ROLE,
        image=target.spec.orchestrator.image or target.image("orchestrator"),
        command=["python", "-P", "-m", "echorl_prepare", "--config", f"{pods.CONFIG}/prepare.json"],
        config=config,
        env=env,
        mounts=storage.mounts(target, ROLE),
        volumes=storage.volumes(target, ROLE),
        notices=False,
    )
