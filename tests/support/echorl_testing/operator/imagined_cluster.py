"""A run's whole life in memory: plans of the real ``plan()`` carried out on records, with a clock that a test moves.

Controllers and kubelets do at once what they would do: pods exist, prepare succeeds, what is let through runs. Tests of
real API servers are elsewhere; here a test may wait half an hour between two passes.
"""

import itertools
import json
from dataclasses import replace
from typing import Any

import msgspec

from echorl_core.names import Phase
from echorl_core.termination_message import TerminationMessage, encoded
from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed import decode
from echorl_operator.observed.records import ChildRecord, ContainerPhase, Kind, PodPhase, PodRecord
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.warning_events import WarningEvent
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Apply, AskToStop, ChangeLive, Create, Delete, LiftGate, Note, Plan
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import NOW, container, meta, observed, run
from echorl_testing.operator.observed_worlds import pod as pod_record
from echorl_testing.operator.scripted_cluster import prepared

SETTINGS = Settings(operator_version="1")
_MOST_PASSES = 50
NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


class ImaginedCluster:
    """Run ``one`` with what was made for it."""

    def __init__(self, **spec: Any) -> None:
        """``spec`` replaces blocks of a small valid one."""
        self.now = NOW
        self.run = run(**spec)
        self.pods: dict[str, PodRecord] = {}
        self.children: dict[tuple[Kind, str], ChildRecord] = {}
        self.state: RoleState | None = None
        """What the orchestrator says; None: it does not answer."""
        self.warning_events: tuple[WarningEvent, ...] = ()
        """Events of what is wrong."""
        self.prepare: TerminationMessage = prepared(1)
        """What a prepare pod says at its end."""
        self.created: list[tuple[str, float]] = []
        """Names of pods and when they were made."""
        self.notes: list[Note] = []
        self.deleted: list[Delete] = []
        self.rolls_out = True
        """Whether engines are of the newest template at once, or not at all."""
        self.places: int | None = None
        """Trainer pods that there are nodes for; None: for any number."""
        self.unscheduled = NO_NODE
        """What the scheduler says of others."""
        self._uids = itertools.count(1)

    @property
    def status(self) -> dict[str, Any]:
        """The run's."""
        return self.run.status

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        found = (one for one in self.status["conditions"] if one["type"] == kind)
        return next(((one["status"], one["reason"], one["message"]) for one in found), ("", "", ""))

    def world(self) -> Observed:
        """What the operator sees."""
        pods = tuple(self.pods[name] for name in sorted(self.pods))
        children = tuple(self.children[key] for key in sorted(self.children))
        return observed(
            *pods,
            run=self.run,
            children=children,
            role_state=self.state,
            now=self.now,
            warning_events=self.warning_events,
        )

    def look(self) -> Plan:
        """One plan, not carried out."""
        return plan(self.world(), SETTINGS, "t")

    def settle(self) -> Plan:
        """Passes until one finds nothing to do, or nothing but to ask the orchestrator to stop. Returns that one."""
        for _ in range(_MOST_PASSES):
            before = self.status
            made = self.step()
            if made.status == before and all(isinstance(action, AskToStop) for action in made.actions):
                return made
        raise AssertionError(f"no rest after {_MOST_PASSES} passes: {self.status.get('message')}, {made.actions}")

    def step(self) -> Plan:
        """One pass. Events of one that changes no status are not posted, as in a cluster."""
        made = self.look()
        self.notes += made.notes if made.status != self.status else ()
        self.run = replace(self.run, status=json.loads(json.dumps(made.status)))
        for action in made.actions:
            self._carry_out(action)
        return made

    def settle_after(self, seconds: float) -> Plan:
        """The same, so much later."""
        self.now += seconds
        return self.settle()

    def begin(self) -> "ImaginedCluster":
        """Until the first attempt is at work."""
        self.settle()
        self.say(step=1)
        self.settle()
        assert self.status["phase"] == "Running", self.status["message"]
        return self

    def say(self, **changes: Any) -> None:
        """The orchestrator of the current attempt says something else."""
        fields = dict.fromkeys(("step", "reward", "trained", "served_min", "served_max", "staleness_max"))
        known: dict[str, Any] = {
            **fields,
            "attempt": self.status["attempt"],
            "phase": Phase.RUNNING,
            "waiting_for": "",
            "checkpoint": None,
            "abandoned": "",
            "engines": (),
            "failure_code": None,
            "failure_message": "",
            "last_step_at": self.now,
            "seen_at": self.now,
        }
        before = self.state
        if before is not None and before.attempt == self.status["attempt"]:
            self.state = replace(before, seen_at=self.now, **changes)
        else:
            self.state = RoleState(**(known | changes))

    def edit(self, **spec: Any) -> None:
        """The user replaces blocks of the spec."""
        self.run = replace(self.run, spec=self.run.spec | spec, generation=self.run.generation + 1)

    def end(self, name: str, code: int, said: TerminationMessage | None = None, *, reason: str = "") -> None:
        """A pod's process ends for good, now. An orchestrator says nothing any more."""
        pod = self.pods[name]
        message = "" if said is None else encoded(said).decode()
        over = container(
            str(pod.role), ContainerPhase.TERMINATED, exit_code=code, message=message, reason=reason, since=self.now
        )
        phase = PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED
        self.pods[name] = replace(pod, phase=phase, ready=False, containers=(over,))
        if pod.role is PodRole.ORCHESTRATOR:
            self.state = None

    def end_in_place(
        self, name: str, code: int, said: TerminationMessage | None = None, *, again: bool = False
    ) -> None:
        """An engine's process ends, and its kubelet waits to start it again; with ``again`` it has done so."""
        pod = self.pods[name]
        (main,) = pod.containers
        restarts = main.restarts + (main.last is not None and main.phase is ContainerPhase.WAITING)
        message = "" if said is None else encoded(said).decode()
        last = container("", ContainerPhase.TERMINATED, exit_code=code, message=message, since=self.now)
        last = replace(last, name=main.name, restarts=restarts)
        phase, reason = ContainerPhase.WAITING, "CrashLoopBackOff"
        if again:
            phase, reason, restarts = ContainerPhase.RUNNING, "", restarts + 1
        main = replace(main, phase=phase, reason=reason, restarts=restarts, ready=again, last=last)
        self.pods[name] = replace(pod, containers=(main,), ready=again)

    def hang(self, name: str) -> None:
        """A pod was deleted, and its kubelet is silent."""
        pod = self.pods[name]
        self.pods[name] = replace(pod, meta=replace(pod.meta, deleted_at=self.now + 30.0), ready=False)

    def take_away(self, name: str, why: str = "", grace_s: float = 120.0) -> None:
        """A pod is deleted by somebody else; it runs on. ``why``: the reason of its ``DisruptionTarget``."""
        pod = self.pods[name]
        self.pods[name] = replace(pod, meta=replace(pod.meta, deleted_at=self.now + grace_s), disrupted=why)

    def remove(self, name: str) -> None:
        """A pod that was deleted is gone."""
        self._make_up_for(self.pods.pop(name))

    def _carry_out(self, action: Any) -> None:
        match action:
            case Create() if action.body["kind"] == "Pod":
                self._make_pod(action.body)
            case Create():
                if (Kind(action.body["kind"]), action.body["metadata"]["name"]) not in self.children:
                    self._keep(action.body)
            case Apply():
                self._keep(action.body)
                self._control(action.body)
            case LiftGate():
                pod = self.pods[action.name]
                self.pods[action.name] = replace(pod, gated=False, node="", unscheduled=self.unscheduled)
                self.schedule()
            case ChangeLive() if self.state is not None:
                self.state = replace(self.state, live_generation=action.settings.generation)
            case Delete():
                self.deleted.append(action)
                self._delete(action)

    def schedule(self) -> None:
        """Trainer pods that were let through get nodes, as far as there are any."""
        trainers = [pod for pod in self.pods.values() if pod.role is PodRole.TRAINER and not pod.gated]
        waiting = [pod for pod in trainers if not pod.node]
        places = len(waiting) if self.places is None else max(0, self.places - len(trainers) + len(waiting))
        for pod in sorted(waiting, key=lambda pod: pod.meta.name)[:places]:
            self.pods[pod.meta.name] = replace(pod, node="node-1", unscheduled="", phase=PodPhase.RUNNING)

    def _delete(self, action: Delete) -> None:
        if action.kind != "Pod":
            del self.children[Kind(action.kind), action.name]
            # Pods of a workload go with it.
            self.pods = {name: pod for name, pod in self.pods.items() if name.rpartition("-")[0] != action.name}
            return
        pod = self.pods.get(action.name)
        if pod is not None and (pod.meta.deleted_at is None or action.grace_s == 0):
            del self.pods[action.name]
            self._make_up_for(pod)

    def _make_up_for(self, gone: PodRecord) -> None:
        """Controllers replace pods."""
        kinds = {PodRole.TRAINER: Kind.STATEFUL_SET, PodRole.INFERENCE: Kind.DEPLOYMENT}
        kind = kinds.get(gone.role or PodRole.PREPARE)
        for child in list(self.children.values()):
            if child.kind is kind:
                self._control(json.loads(child.body))

    def _keep(self, body: dict[str, Any]) -> None:
        kind, name = Kind(body["kind"]), body["metadata"]["name"]
        before = self.children.get((kind, name))
        generation = 1 if before is None else before.meta.generation + 1
        kept = decode.child(kind, json.dumps(body).encode())
        owner = self.run.uid if body["metadata"].get("ownerReferences") else ""
        own = meta(name, generation=generation, created_at=self.now, owner_uid=owner)
        self.children[kind, name] = replace(kept, meta=own, observed_generation=generation)

    def _control(self, body: dict[str, Any]) -> None:
        """What controllers make of a workload."""
        if body["kind"] not in ("StatefulSet", "Deployment"):
            return
        name, wanted = body["metadata"]["name"], body["spec"]["replicas"]
        labels = body["spec"]["template"]["metadata"]["labels"]
        role = PodRole(labels[names.LABEL_ROLE])
        mine = {f"{name}-{index}" for index in range(wanted)}
        for extra in [one.meta.name for one in self.pods.values() if one.role is role and one.meta.name not in mine]:
            del self.pods[extra]
        for one in sorted(mine - set(self.pods)):
            attempt = int(labels.get(names.LABEL_ATTEMPT, "0"))
            gated = role is PodRole.TRAINER
            phase = PodPhase.PENDING if gated else PodPhase.RUNNING
            self._put(
                one,
                role,
                attempt=attempt,
                gated=gated,
                phase=phase,
                node="" if gated else "node-1",
                index=int(one.rpartition("-")[2]) if gated else None,
            )
        child = self.children[Kind(body["kind"]), name]
        counts = {"desired": wanted, "replicas": wanted, "ready": wanted, "updated": wanted if self.rolls_out else 0}
        self.children[child.kind, name] = replace(child, **counts)

    def _make_pod(self, body: dict[str, Any]) -> None:
        labels, name = body["metadata"]["labels"], body["metadata"]["name"]
        if name in self.pods:
            return
        role = PodRole(labels[names.LABEL_ROLE])
        self._put(name, role, attempt=int(labels[names.LABEL_ATTEMPT]))
        if role is PodRole.PREPARE:
            said = msgspec.structs.replace(self.prepare, attempt=self.status["attempt"])
            self.end(name, said.exit_code, said)

    def _put(self, name: str, role: PodRole, **changes: Any) -> None:
        made = pod_record(name, role, **changes)
        own = meta(name, uid=f"uid-{next(self._uids)}", created_at=self.now)
        self.pods[name] = replace(made, meta=own)
        self.created.append((name, self.now))
