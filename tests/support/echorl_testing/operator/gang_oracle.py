"""Judges a run by the whole history of its objects: gangs let through one at a time and whole, no child made twice."""

from collections import Counter
from collections.abc import Iterable, Iterator

from echorl_operator import names
from echorl_operator.children.arrows import FIRST_TRAINER
from echorl_testing.kube.watch_history import Change, Object

_MADE_ONCE = (
    "StatefulSet",
    "Deployment",
    "Service",
    "ServiceAccount",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Secret",
)


def is_admitted(pod: Object) -> bool:
    """Whether the scheduler may see a trainer pod."""
    return all(gate["name"] != names.SCHEDULING_GATE for gate in pod["spec"].get("schedulingGates") or ())


def attempt_of(pod: Object) -> int:
    """A pod's attempt."""
    return int(pod["metadata"]["labels"].get(names.LABEL_ATTEMPT, "0"))


def gang_problems(changes: Iterable[Change]) -> list[str]:
    """What is wrong with how the trainer pods of one namespace's runs were let through; empty if nothing is.

    - No two attempts' pods were let through at once. A pod counts until the API server has it no more.
    - A pod is let through only once status names its attempt as admitted.
    """
    problems: list[str] = []
    admitted: dict[str, dict[str, int]] = {}
    allowed: dict[str, int] = {}
    for change in changes:
        if change.kind == names.KIND:
            status = change.object.get("status", {})
            allowed[change.uid] = status.get("control", {}).get("admittedAttempt", 0)
            continue
        if change.kind != "Pod" or not (trainers := _of_trainer(change)):
            continue
        run = trainers["metadata"]["labels"][names.LABEL_RUN_UID]
        of_run = admitted.setdefault(run, {})
        problems += _let_through(change, trainers, of_run, allowed.get(run, 0))
    return problems


def _of_trainer(change: Change) -> Object | None:
    pod = change.object
    labels = pod["metadata"].get("labels") or {}
    return pod if labels.get(names.LABEL_ROLE) == names.PodRole.TRAINER and names.LABEL_RUN_UID in labels else None


def _let_through(change: Change, pod: Object, admitted: dict[str, int], allowed: int) -> Iterator[str]:
    if change.type == "DELETED":
        admitted.pop(change.uid, None)
        return
    if not is_admitted(pod) or change.uid in admitted:
        return
    attempt = attempt_of(pod)
    if attempt != allowed:
        yield f"{change.name} of attempt {attempt} was let through while status admits attempt {allowed}"
    others = sorted({other for other in admitted.values() if other != attempt})
    if others:
        yield f"{change.name} of attempt {attempt} was let through beside pods of attempts {others}"
    admitted[change.uid] = attempt


def attempts_admitted(changes: Iterable[Change]) -> list[int]:
    """Attempts of trainer pods in the order in which they were let through."""
    seen: set[str] = set()
    found: list[int] = []
    for change in changes:
        if change.kind != "Pod" or change.uid in seen:
            continue
        if (pod := _of_trainer(change)) is not None and change.type != "DELETED" and is_admitted(pod):
            seen.add(change.uid)
            found.append(attempt_of(pod))
    return found


def _comes_and_goes(change: Change) -> bool:
    """Engines reach the first trainer pod only while weights go over HTTP: an edit of that takes the policy away."""
    return change.kind == "NetworkPolicy" and change.name.endswith(f"-{FIRST_TRAINER}")


def made_twice(changes: Iterable[Change]) -> list[str]:
    """Children of a run that were made more than once, though nobody took them away."""
    made = Counter(
        (change.kind, change.name)
        for change in {one.uid: one for one in changes if one.type == "ADDED"}.values()
        if change.kind in _MADE_ONCE and not _comes_and_goes(change)
    )
    return [f"{kind} {name} was made {count} times" for (kind, name), count in sorted(made.items()) if count > 1]
