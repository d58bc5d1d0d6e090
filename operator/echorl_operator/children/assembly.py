"""Makes a run's Kubernetes children. ``render`` is all that looks at the spec; the rest fills in an attempt.

render --> Rendering --> common, token_secret                  apply (claim and Secret: create)
--> trainer_set, inference_deployment     apply
--> prepare_pod, orchestrator_pod         create
"""

import base64
from collections.abc import Iterator

from echorl_core.config import RoleConfig, RoleConfigs
from echorl_core.problem import Problem
from echorl_manifest.compile.role_configs import role_configs
from echorl_manifest.models.run import EchoRLRun
from echorl_manifest.models.runtime import Resume
from echorl_operator import names
from echorl_operator.children import inference, orchestrator, prepare, trainer
from echorl_operator.children.arrows import arrows_of
from echorl_operator.children.budgets import disruption_budgets
from echorl_operator.children.cluster_placement import cluster_placement, path_problems, served
from echorl_operator.children.environments import environment_servers
from echorl_operator.children.network import egress_problems, network_policies
from echorl_operator.children.node_network import host_problems
from echorl_operator.children.overlay_rules import overlay_problems
from echorl_operator.children.pod_rules import pod_problems
from echorl_operator.children.rendering import Rendering
from echorl_operator.children.revision import LARGEST
from echorl_operator.children.sandboxes import broker_problems
from echorl_operator.children.services import services
from echorl_operator.children.sizes import largest_fields
from echorl_operator.children.storage import TOKEN_KEY, claims
from echorl_operator.children.target import (
    Object,
    Target,
    canonical_json,
    config_file,
    config_map_name,
    digest,
    hashed,
)
from echorl_operator.names import PodRole
from echorl_operator.settings import Settings

_SURELY_SMALL = 2**13
"""Characters of a spec whose rendering fits into a revision, however much longer than the spec it is."""
_MARGIN = 2**15
"""Bytes for what a revision has besides, and for names that are not known yet."""
_TEMPLATES = (PodRole.TRAINER, PodRole.INFERENCE, PodRole.ORCHESTRATOR)


def cluster_problems(run: EchoRLRun, settings: Settings) -> list[Problem]:
    """What keeps a valid manifest from being rendered for a cluster: overlays, egress rules, paths, memory."""
    target = Target(run, "", "", settings)
    of_the_installation = (*broker_problems(run.spec, settings), *host_problems(run.spec, settings))
    refused, problems = always_refused(run), [*path_problems(run), *of_the_installation]
    for role in _TEMPLATES:
        path = f"spec.{role}.template"
        if not any(problem.path.startswith(path) for problem in refused):
            problems += pod_problems(target, role, path)
    return [*refused, *problems] or list(_size_problems(target))


def always_refused(run: EchoRLRun) -> list[Problem]:
    """The ``cluster_problems`` that no installation changes: what is wrong with templates and egress rules."""
    problems = egress_problems(run.spec.egress)
    for role in _TEMPLATES:
        template: object = getattr(run.spec, role.value).template
        problems += overlay_problems(template, f"spec.{role}.template")
    return problems


def render(run: EchoRLRun, *, uid: str, namespace: str, generation: int, settings: Settings) -> Rendering:
    """Everything of a run that does not depend on its attempt. The same arguments give the same rendering.

    Args:
        run: valid.
        uid: of the run.
        namespace: where it and its children live.
        generation: of the run's spec.
        settings: of the installation.

    Raises:
        ValueError: with every one of ``cluster_problems``, a line each.
    """
    if problems := cluster_problems(run, settings):
        raise ValueError("\n".join(str(problem) for problem in problems))
    return _rendering(Target(run, uid, namespace, settings), generation)


def _rendering(target: Target, generation: int) -> Rendering:
    run, settings = target.run, target.settings
    configs = role_configs(run, cluster_placement(run, settings, target.namespace))
    files = _files(target, configs)
    maps = {name: _config_map(target, name, content) for name, content in files.items()}
    arrows = arrows_of(target)
    spec = run.spec.model_dump(mode="json", by_alias=True)
    return Rendering(
        run=target.name,
        uid=target.uid,
        namespace=target.namespace,
        generation=generation,
        operator_version=settings.operator_version,
        config_hash=digest(files),
        spec_hash=digest(spec),
        spec=spec,
        common=[
            hashed(body)
            for body in (
                *_service_accounts(target),
                *network_policies(target, arrows),
                *maps.values(),
                *claims(target),
                *services(target),
                *environment_servers(target),
                *disruption_budgets(target),
            )
        ],
        token=_token(target),
        trainer=trainer.trainer_set(target, _name(maps["trainer.json"])),
        inference=inference.inference_deployment(target, _name(maps["inference.json"])),
        orchestrator=orchestrator.orchestrator_pod(target, _name(maps["orchestrator.json"])),
        prepare=prepare.prepare_pod(target, _name(maps["prepare.json"])),
        arrows=[arrow.as_json() for arrow in arrows],
    )


def common(rendering: Rendering) -> list[Object]:
    """Children that no attempt changes, in the order to apply them: policies stand before there are pods.

    The claim (kind PersistentVolumeClaim) is to be created only: see ``storage.claims``. Not to be changed.
    """
    return list(rendering.common)


def token_secret(rendering: Rendering, token: str) -> Object:
    """The Secret with the token that guards calls between the run's roles; to be created, never changed."""
    data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    return hashed({**rendering.token, "data": data})


def prepare_pod(rendering: Rendering, attempt: int, resume: Resume | None = None) -> Object:
    """The pod that prepares an attempt.

    Args:
        rendering: of the run.
        attempt: that starts.
        resume: ``spec.resume``; prepare knows whether it was carried out before. None: go on where the run stopped.
    """
    pod = _of_attempt(rendering.prepare, attempt)
    pod["metadata"]["name"] = names.prepare(rendering.run, attempt)
    arguments = {"args": prepare.resume_arguments(resume)}
    containers = [part | arguments if part["name"] == PodRole.PREPARE else part for part in pod["spec"]["containers"]]
    return hashed({**pod, "spec": {**pod["spec"], "containers": containers}})


def trainer_set(rendering: Rendering, attempt: int, replicas: int) -> Object:
    """The trainer's StatefulSet in an attempt. ``replicas``: the whole gang, or 0."""
    body = _of_attempt(rendering.trainer, attempt)
    template = _of_attempt(body["spec"]["template"], attempt)
    return hashed({**body, "spec": {**body["spec"], "replicas": replicas, "template": template}})


def inference_deployment(rendering: Rendering, replicas: int) -> Object:
    """The engines' Deployment."""
    body = rendering.inference
    return hashed({**body, "spec": {**body["spec"], "replicas": replicas}})


def orchestrator_pod(rendering: Rendering, attempt: int) -> Object:
    """The orchestrator's pod in an attempt."""
    return hashed(_of_attempt(rendering.orchestrator, attempt))


def _size_problems(target: Target) -> Iterator[Problem]:
    if len(target.spec.model_dump_json()) <= _SURELY_SMALL:
        return
    rendering = _rendering(target, 1)
    size = len(canonical_json(rendering.to_json()).encode()) + _MARGIN
    if size > LARGEST:
        (largest, taken), *others = largest_fields(rendering.spec)
        then = "".join(f", then {path} with {bytes_} bytes" for path, bytes_ in others)
        reason = f"largest with {taken} bytes{then}; args, templates and egress rules stand in several children"
        whole = f"a manifest that renders to {size} bytes"
        yield Problem(largest, whole, f"one that renders to at most {LARGEST}", reason)


def _of_attempt(body: Object, attempt: int) -> Object:
    if attempt < 1:
        raise ValueError(f"attempt: found {attempt}, accepted is an integer from 1")
    # Nothing is copied but what differs: most passes make children only to see that they are there.
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "labels": {**metadata["labels"], names.LABEL_ATTEMPT: str(attempt)}}}


def _files(target: Target, configs: RoleConfigs) -> dict[str, Object]:
    by_role: dict[PodRole, RoleConfig] = {
        PodRole.TRAINER: configs.trainer,
        PodRole.INFERENCE: configs.inference[0],
        PodRole.ORCHESTRATOR: configs.orchestrator,
        PodRole.PREPARE: prepare.prepare_config(target, configs),
    }
    return {f"{role}.json": config.model_dump(mode="json") for role, config in by_role.items()}


def _config_map(target: Target, file: str, content: Object) -> Object:
    """One role's config. Named by its content, so that a pod keeps what it was started with.

    One each, so that a change of one role's config replaces no other role's pods.
    """
    head = target.child(
        "v1", "ConfigMap", config_map_name(target.name, file, content), PodRole(file.removesuffix(".json"))
    )
    return {**head, "immutable": True, "data": {file: config_file(content)}}


def _token(target: Target) -> Object:
    return {**target.child("v1", "Secret", names.token(target.name)), "type": "Opaque", "immutable": True}


def _name(body: Object) -> str:
    name: str = body["metadata"]["name"]
    return name


def _service_accounts(target: Target) -> list[Object]:
    """ServiceAccounts, one a role that the run has: none has rights, and no pod mounts a token of one."""
    return [
        {
            **target.child("v1", "ServiceAccount", names.role_account(target.name, role), role),
            "automountServiceAccountToken": False,
        }
        for role in PodRole
        if role is not PodRole.ENVIRONMENT or served(target.spec)
    ]
