"""A run's world in memory that does what plans say, for tests of whole plans: every write succeeds at once."""

import json
from dataclasses import replace
from typing import Any

import msgspec

from echorl_core.last_words import Preparation, encoded, words_of
from echorl_operator import names
from echorl_operator.build.settings import Settings
from echorl_operator.names import PodRole
from echorl_operator.observed import decode
from echorl_operator.observed.records import ChildRecord, ContainerPhase, Kind, PodPhase, PodRecord
from echorl_operator.observed.world import Observed
from echorl_operator.plan.actions import Apply, Create, Delete, LiftGate, Plan
from echorl_operator.plan.planning import plan
from echorl_testing.observed_worlds import container, meta, observed, pod, run

SETTINGS = Settings(operator_version="1")
PASSES = 30


class PlannedWorld:
    """One run. Change ``now`` as a test wants, then ``plan`` or ``carry_out``."""

    def __init__(self, **spec: Any) -> None:
        self.now: Observed = observed(run=run(**spec))

    def plan(self) -> Plan:
        """What would be written now."""
        return plan(self.now, SETTINGS, "t")

    def carry_out(self) -> Plan:
        """One pass: its writes are in ``now`` afterwards, its status too."""
        made = self.plan()
        for action in made.actions:
            self._carry_out(action)
        self.now = replace(self.now, run=replace(self.now.run, status=json.loads(json.dumps(made.status))))
        return made

    def start(self) -> None:
        """Passes until the gang is let through: engines, orchestrator and trainers run.

        Raises:
            AssertionError: that does not come about.
        """
        for _ in range(PASSES):
            made = self.carry_out()
            trainers = list(self.now.of(PodRole.TRAINER))
            if trainers and not any(pod.gated for pod in trainers) and not made.actions:
                return
        raise AssertionError(f"not running after {PASSES} passes: {self.now.run.status}")

    def _carry_out(self, action: Any) -> None:
        if isinstance(action, Apply | Create):
            self._made(action.body)
        elif isinstance(action, LiftGate):
            lifted = (replace(one, gated=one.gated and one.meta.name != action.name) for one in self.now.pods)
            self.now = replace(self.now, pods=tuple(lifted))
        elif isinstance(action, Delete):
            pods = tuple(one for one in self.now.pods if one.meta.uid != action.uid)
            children = tuple(one for one in self.now.children if one.meta.uid != action.uid)
            self.now = replace(self.now, pods=pods, children=children)

    def _made(self, body: dict[str, Any]) -> None:
        name, attempt = body["metadata"]["name"], int(body["metadata"]["labels"].get(names.LABEL_ATTEMPT, "0"))
        if body["kind"] == "Pod":
            self._put(self._pod(name, PodRole(body["metadata"]["labels"][names.LABEL_ROLE]), attempt))
            return
        live = {**body, "metadata": {**body["metadata"], "uid": f"uid-{name}", "resourceVersion": "1", "generation": 1}}
        live["status"] = {"observedGeneration": 1}
        kind = Kind(body["kind"])
        child = decode.child(kind, json.dumps(live).encode())
        self._child(child)
        if kind is Kind.STATEFUL_SET:
            labels = body["spec"]["template"]["metadata"]["labels"]
            for index in range(child.desired):
                of = int(labels[names.LABEL_ATTEMPT])
                self._put(replace(self._pod(f"{name}-{index}", PodRole.TRAINER, of), index=index, gated=True))
        elif kind is Kind.DEPLOYMENT:
            for index in range(child.desired):
                self._put(replace(self._pod(f"{name}-{index}", PodRole.INFERENCE, 0), ip=f"10.1.0.{index}"))

    def _pod(self, name: str, role: PodRole, attempt: int) -> PodRecord:
        if role is not PodRole.PREPARE:
            return pod(name, role, attempt=attempt, meta=meta(name, uid=f"uid-{name}-{attempt}"))
        found = Preparation(resume_step=0, model_path="/m", committed=[])
        words = msgspec.structs.replace(words_of("prepare", 0, "", attempt=attempt), prepared=found)
        done = container("prepare", ContainerPhase.TERMINATED, exit_code=0, message=encoded(words).decode())
        return pod(name, role, attempt=attempt, phase=PodPhase.SUCCEEDED, ready=False, containers=(done,))

    def _put(self, made: PodRecord) -> None:
        others = (one for one in self.now.pods if one.meta.name != made.meta.name)
        self.now = replace(self.now, pods=tuple(sorted((*others, made), key=lambda one: one.meta.name)))

    def _child(self, made: ChildRecord) -> None:
        others = (one for one in self.now.children if (one.kind, one.meta.name) != (made.kind, made.meta.name))
        by_name = sorted((*others, made), key=lambda one: (one.kind, one.meta.name))
        self.now = replace(self.now, children=tuple(by_name))
