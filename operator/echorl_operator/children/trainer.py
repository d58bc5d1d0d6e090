"""The trainer's StatefulSet: pods that start together or not at all, one attempt after the other.

``Parallel`` and ``OnDelete`` leave it to the operator when pods go; the scheduling gate, when they may start. No
container starts twice: a rank that ended takes its gang with it. (``restartPolicy`` of a container in such a pod needs
Kubernetes 1.35.)
"""

from echorl_core import names as core_names
from echorl_manifest.compile.role_configs import num_ranks
from echorl_operator import names
from echorl_operator.children import cluster_placement as places
from echorl_operator.children import pods, storage, variables
from echorl_operator.children.overlay_rules import POD_INDEX
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole

ROLE = PodRole.TRAINER
GRACE_S = 120
"""For a step and a save; a step that takes longer is dropped at once."""


def ranks_per_pod(target: Target) -> int:
    """Trainer processes of each pod."""
    return num_ranks(target.spec) // target.spec.trainer.replicas


def ports(target: Target) -> dict[str, int]:
    """HTTP ports of a pod's ranks, by name; they serve weights, too."""
    numbers = range(places.TRAINER_PORT, places.TRAINER_PORT + ranks_per_pod(target))
    return {"metrics" if not local else f"metrics-{local}": port for local, port in enumerate(numbers)}


def _taken(target: Target) -> dict[str, int]:
    """Ports of a pod: on a node's network also those by which a gang meets, so that nobody else has them there."""
    if not target.network(ROLE).host:
        return ports(target)
    return {**ports(target), "rendezvous": places.RENDEZVOUS_PORT, "gang": places.GANG_PORT}


def trainer_set(target: Target, config: str) -> Object:
    """The StatefulSet without attempt and replicas. ``config``: name of the ConfigMap with its config."""
    template = pods.pod_template(target, _role(target, config))
    spec = template["spec"]
    # The API server wants Always of a StatefulSet's pod, and takes Never of its containers.
    for container in spec["containers"]:
        container["restartPolicy"] = "Never"
    spec["schedulingGates"] = [{"name": names.SCHEDULING_GATE}]
    return {
        **target.child("apps/v1", "StatefulSet", names.trainer(target.name), ROLE),
        "spec": {
            "serviceName": names.trainer(target.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": target.selector(ROLE)},
            "template": template,
        },
    }


def _role(target: Target, config: str) -> pods.Role:
    env = [
        *variables.identity(target, attempt=True, token=True),
        variables.label_variable(core_names.ENV_POD_INDEX, POD_INDEX),
        variables.variable(core_names.ENV_PODS, str(target.spec.trainer.replicas)),
        variables.variable(core_names.ENV_RANKS_PER_POD, str(ranks_per_pod(target))),
        variables.variable("MASTER_ADDR", places.first_trainer(target.name)),
        variables.variable("MASTER_PORT", str(places.RENDEZVOUS_PORT)),
    ]
    if target.spec.trainer.replicas > 1:
        # Where engines fetch what this pod's ranks serve; the kubelet puts the number in.
        host = places.trainer_pod(target.name, f"$({core_names.ENV_POD_INDEX})")
        env.append(variables.variable(core_names.ENV_ADVERTISE_HOST, host))
    if target.spec.checkpoint.memory is not None and target.spec.trainer.replicas > 1:
        env.append(variables.variable(core_names.ENV_GANG_PORT, str(places.GANG_PORT)))
        if target.spec.checkpoint.memory.mirror:
            members = (places.trainer_member(target.name, index) for index in range(target.spec.trainer.replicas))
            env.append(variables.variable(core_names.ENV_GANG_MEMBERS, ",".join(members)))
    if (code := storage.code_path(target, ROLE)) is not None:
        env.append(variables.variable("PYTHONPATH", code))
    return pods.Role(
        role=ROLE,
        image=target.spec.trainer.image or target.image("trainer"),
        command=["python", "-P", "-m", "echorl_trainer.pod", "--config", f"{pods.CONFIG}/trainer.json"],
        config=config,
        env=env,
        mounts=storage.mounts(target, ROLE),
        volumes=storage.volumes(target, ROLE),
        ports=_taken(target),
        probes=pods.probes(target, "/healthz", "metrics", unhealthy_s=pods.stall_s(target)),
        grace_s=GRACE_S,
        restart_policy="Always",
    )
