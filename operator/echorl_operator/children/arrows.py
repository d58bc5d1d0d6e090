"""Who talks to whom in a run, and why: the one list that NetworkPolicies are derived from and people can read.

Host names cannot stand in a NetworkPolicy. What a run reaches by name outside the cluster (hub, teacher, judges, W&B)
is therefore allowed by port alone, to any address; an address in numbers is allowed alone.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from echorl_core.wire.sandboxes import BROKER_PORT
from echorl_manifest.compile.role_configs import num_ranks
from echorl_manifest.models.environments import Environment
from echorl_manifest.models.model import is_path
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.finding import eval_environments, train_environments
from echorl_operator.children import cluster_placement as places
from echorl_operator.children.sandboxes import are_pods
from echorl_operator.children.target import Object, Target
from echorl_operator.children.trainer import ranks_per_pod
from echorl_operator.names import PodRole

FIRST_TRAINER = "trainer-0"
"""The gang's first pod; arrows to ``trainer`` reach it as well."""
AGENTS = "agent"
"""Pods that somebody starts as agents of a run: labels ``echorl.dev/run-uid`` and ``echorl.dev/role: agent``."""
SANDBOXES, SANDBOXES_WITH_GATEWAY = "sandbox", "sandbox-gateway"
"""Pods that the broker makes; those that may reach the gateway are among the first."""
OPERATOR, MONITORING, DNS, ANYWHERE, BROKER = "operator", "monitoring", "dns", "anywhere", "broker"
RUN_ENDS = (*(role.value for role in PodRole), FIRST_TRAINER, AGENTS, SANDBOXES, SANDBOXES_WITH_GATEWAY)
"""Ends that are pods of the run: each gets policies of its own."""

_HTTPS, _HTTP = 443, 80


@dataclass(frozen=True)
class Ports:
    """A range of ports."""

    first: int
    last: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        """``TCP/8200-8207``."""
        return f"{self.protocol}/{self.first}" + (f"-{self.last}" if self.last != self.first else "")


@dataclass(frozen=True)
class Arrow:
    """One kind of connection that is allowed."""

    source: str
    """Who opens it: an end of the run, ``operator`` or ``monitoring``."""
    target: str
    """Who is called: an end of the run, ``broker``, ``dns``, ``anywhere``, an address, or ``spec.egress[i]``."""
    ports: tuple[Ports, ...]
    """Empty: all, or as the egress rule says."""
    why: str

    def __str__(self) -> str:
        """Say the connection in one line."""
        ports = ", ".join(str(span) for span in self.ports) or "all ports"
        return f"{self.source} -> {self.target} ({ports}): {self.why}"

    def as_json(self) -> Object:
        """Write the connection as it stands in a rendering."""
        ports = [[span.first, span.last, span.protocol] for span in self.ports]
        return {"source": self.source, "target": self.target, "ports": ports, "why": self.why}

    @classmethod
    def from_json(cls, body: Object) -> "Arrow":
        """Read a connection that ``as_json`` wrote."""
        return cls(body["source"], body["target"], tuple(Ports(*span) for span in body["ports"]), body["why"])


def arrows_of(target: Target) -> list[Arrow]:
    """Every connection that the run's pods may open or take. Whatever is not here is denied."""
    return [*_between_roles(target), *_of_sandboxes(target), *_from_outside(target), *_to_outside(target)]


def _tcp(first: int, count: int = 1) -> tuple[Ports, ...]:
    return (Ports(first, first + count - 1),)


def _between_roles(target: Target) -> Iterator[Arrow]:
    orchestrator = _tcp(places.ORCHESTRATOR_PORT)
    trainer, engines = PodRole.TRAINER.value, PodRole.INFERENCE.value
    yield Arrow(PodRole.ORCHESTRATOR.value, engines, _tcp(places.ENGINE_PORT), "sampling and weight updates")
    if target.spec.weight_transfer.mode != "disk":
        if serves_shared(target.spec):
            yield Arrow(engines, trainer, _tcp(places.TRAINER_PORT, ranks_per_pod(target)), "new weights")
        else:
            yield Arrow(engines, FIRST_TRAINER, _tcp(places.TRAINER_PORT), "new weights")
    if _may_broadcast(target.spec):
        # The members of a process group listen at ports of the system's choice.
        senders = trainer if serves_shared(target.spec) else FIRST_TRAINER
        for source, to in ((engines, senders), (senders, engines), (engines, engines)):
            yield Arrow(source, to, (), "broadcasts of weights")
    if places.served(target.spec):
        environments, port = PodRole.ENVIRONMENT.value, _tcp(places.ENVIRONMENT_PORT)
        yield Arrow(PodRole.ORCHESTRATOR.value, environments, port, "episodes of environments that are images")
    yield Arrow(trainer, PodRole.ORCHESTRATOR.value, orchestrator, "batches and reports")
    yield Arrow(trainer, trainer, (), "collectives")
    yield Arrow(AGENTS, PodRole.ORCHESTRATOR.value, orchestrator, "the gateway")


def serves_shared(spec: EchoRLRunSpec) -> bool:
    """Whether several ranks of the trainer serve a version among them (the trainer's ``sharing.py``)."""
    per_replica = num_ranks(spec) // spec.trainer.parallel.replicate
    return spec.weight_transfer.mode != "disk" and spec.model.lora is None and per_replica > 1


def _may_broadcast(spec: EchoRLRunSpec) -> bool:
    on_gpus = spec.trainer.gpus_per_replica > 0 and spec.inference.gpus_per_replica > 0
    return spec.weight_transfer.mode == "nccl" or (spec.weight_transfer.mode == "auto" and on_gpus)


def _of_sandboxes(target: Target) -> Iterator[Arrow]:
    if not are_pods(target.spec):
        return
    orchestrator = PodRole.ORCHESTRATOR.value
    yield Arrow(orchestrator, BROKER, _tcp(BROKER_PORT), "asking for sandboxes")
    yield Arrow(orchestrator, SANDBOXES, _tcp(places.SANDBOX_PORT), "commands and files of sandboxes")
    yield Arrow(SANDBOXES_WITH_GATEWAY, orchestrator, _tcp(places.ORCHESTRATOR_PORT), "the gateway")


def _from_outside(target: Target) -> Iterator[Arrow]:
    yield Arrow(OPERATOR, PodRole.ORCHESTRATOR.value, _tcp(places.ORCHESTRATOR_PORT), "the run's state")
    scraped = {
        PodRole.ORCHESTRATOR: _tcp(places.ORCHESTRATOR_PORT),
        PodRole.INFERENCE: _tcp(places.ENGINE_PORT),
        PodRole.TRAINER: _tcp(places.TRAINER_PORT, ranks_per_pod(target)),
    }
    for role, ports in scraped.items():
        yield Arrow(MONITORING, role.value, ports, "metrics")


def _to_outside(target: Target) -> Iterator[Arrow]:
    dns = (Ports(53, 53, "UDP"), Ports(53, 53))
    # What serves an environment needs nothing of the world.
    for end in (*(role.value for role in PodRole if role is not PodRole.ENVIRONMENT), AGENTS):
        yield Arrow(end, DNS, dns, "names")
    spec, orchestrator = target.spec, PodRole.ORCHESTRATOR.value
    if not is_path(spec.model.name):
        yield _to_url(PodRole.PREPARE.value, target.settings.hub_endpoint, "fetching the model")
    if spec.algorithm.teacher is not None and spec.algorithm.teacher.url is not None:
        yield _to_url(orchestrator, spec.algorithm.teacher.url, "the teacher")
    for path, environment in (*train_environments(spec), *eval_environments(spec)):
        yield from (_to_url(orchestrator, url, why) for why, url in _urls(path, environment))
    wandb = spec.monitors.wandb
    if wandb.project is not None and wandb.mode == "online":
        yield _to_url(orchestrator, wandb.base_url, "Weights & Biases")
    for index in range(len(spec.egress)):
        # Engines run no code of the user's, and need nothing of the world.
        for role in (PodRole.PREPARE, PodRole.ORCHESTRATOR, PodRole.TRAINER):
            yield Arrow(role.value, f"spec.egress[{index}]", (), "as the manifest says")


def _urls(path: str, environment: Environment) -> Iterator[tuple[str, str]]:
    """What an environment's episodes are played with elsewhere, each with the field that says so."""
    source, _, server = environment.type.partition(":")
    if source in {"openenv", "nemo-gym"} and environment.image is None:
        yield f"{path}.type", server
    for name, member in environment.members.items():
        if member.url is not None:
            yield f"{path}.members.{name}", member.url


def _to_url(source: str, url: str | None, why: str) -> Arrow:
    """``url`` None, or none that can be read, which who calls it refuses: HTTPS to anywhere."""
    try:
        parts = urlsplit(url or "https://")
        port = parts.port or (_HTTP if parts.scheme == "http" else _HTTPS)
    except ValueError:
        return Arrow(source, ANYWHERE, _tcp(_HTTPS), why)
    return Arrow(source, _address(parts.hostname) or ANYWHERE, _tcp(port), why)


def _address(host: str | None) -> str | None:
    try:
        return str(ipaddress.ip_network(host or ""))
    except ValueError:
        return None
