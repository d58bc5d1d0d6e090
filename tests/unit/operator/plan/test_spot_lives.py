"""Lives on spot capacity: schedules of notices, drains, kills, silent nodes and edits, drawn at random.

The operator's decisions are real, the cluster is imagined. Whatever comes, ranks of two attempts never run at once, no
restart is used up but by a fault, and the run trains once it is left alone.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from echorl_core.names import ExitCode, Phase
from echorl_core.termination_message import message_of_end
from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.plan.actions import AskToStop
from echorl_testing import campaign
from echorl_testing.operator.imagined_cluster import ImaginedCluster

LIVES = range(600)
DISTURBED_S, CALM_S = 1800.0, 3600.0
NEVER = 10_000
REASONS = ("EvictionByEvictionAPI", "DeletionByTaintManager", "PreemptionByScheduler", "TerminationByKubelet", "")
CODES = (1, 134, 137, 139, 255)
ALONE = frozenset({PodRole.TRAINER, PodRole.ORCHESTRATOR})
"""Roles whose faults use restarts up; an engine starts again where it is."""


@dataclass
class Due:
    """Something that comes to pass later."""

    at: float
    what: Callable[[], None]


class Life:
    """A run, what is done to it, and what must hold meanwhile."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)
        self.only_notices = number % 3 == 0
        self.cluster = ImaginedCluster(
            failurePolicy={"maxRestarts": NEVER, "backoffSeconds": 0}, stallPolicy={"noStepFor": "24h"}, maxSteps=NEVER
        ).begin()
        self.due: list[Due] = []
        self.faults = self.notices = self.attempt = 0
        self.step = 1

    def disturbances(self) -> list[Callable[[], None]]:
        """Which may come."""
        of_all = [self.notice, self.notice, self.drain, self.edit]
        return of_all if self.only_notices else [*of_all, self.kill, self.kill, self.silent_node]

    def pods(self) -> list[PodRecord]:
        """Those that can be taken away."""
        return [pod for pod in self.cluster.pods.values() if pod.meta.deleted_at is None and not pod.ended]

    def notice(self) -> None:
        """Somebody takes a pod away."""
        if pods := self.pods():
            self.take_away(self.chance.choice(pods), self.chance.choice(REASONS))

    def drain(self) -> None:
        """All pods of a node are taken away."""
        why = self.chance.choice(REASONS)
        for pod in self.pods():
            if self.chance.random() < 0.7:
                self.take_away(pod, why)

    def take_away(self, pod: PodRecord, why: str) -> None:
        """It has its grace, in which its gang or it may end by itself, and is gone afterwards."""
        self.notices += 1
        grace_s = self.chance.choice([0.0, 5.0, 30.0, 120.0])
        self.cluster.take_away(pod.meta.name, why, grace_s)
        if self.chance.random() < 0.5:
            self.later(self.chance.uniform(0.0, grace_s / 2), lambda: self.answer(pod))
        self.later(grace_s, lambda: self.remove(pod))

    def answer(self, pod: PodRecord) -> None:
        """Its process has understood: a rank ends with its whole gang."""
        ends = [pod] if pod.role is not PodRole.TRAINER else list(self.cluster.pods.values())
        for one in ends:
            if one.role is pod.role and one.attempt == pod.attempt and self.is_there(one) and not one.gated:
                said = message_of_end(str(one.role), ExitCode.NOTICE, "notice", attempt=one.attempt, step=self.step)
                self.cluster.end(one.meta.name, ExitCode.NOTICE, said)

    def kill(self) -> None:
        """A process ends at once."""
        pods = [pod for pod in self.pods() if not pod.gated and pod.role is not PodRole.PREPARE]
        if not pods:
            return
        pod, code = self.chance.choice(pods), self.chance.choice(CODES)
        if pod.role in ALONE:
            self.faults += 1
            self.cluster.end(pod.meta.name, code)
        else:
            self.cluster.end_in_place(pod.meta.name, code, again=self.chance.random() < 0.5)
            self.later(20.0, lambda: self.remove(pod))

    def silent_node(self) -> None:
        """A kubelet says nothing more, and the pod is deleted for that."""
        if pods := self.pods():
            pod = self.chance.choice(pods)
            self.faults += 1
            self.cluster.hang(pod.meta.name)
            self.later(self.chance.uniform(30.0, 300.0), lambda: self.remove(pod))

    def edit(self) -> None:
        """The user changes something that applies live, or replaces the gang."""
        edits: list[dict[str, Any]] = [
            {"maxSteps": NEVER + self.chance.randint(1, 100)},
            {"suspend": True},
            {"suspend": False},
            {"seed": self.chance.randint(0, 100)},
        ]
        self.cluster.edit(**self.chance.choice(edits))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something once so much time has passed."""
        self.due.append(Due(self.cluster.now + seconds, what))

    def is_there(self, pod: PodRecord) -> bool:
        """Whether it is still this one, and runs."""
        found = self.cluster.pods.get(pod.meta.name)
        return found is not None and found.meta.uid == pod.meta.uid and not found.ended

    def remove(self, pod: PodRecord) -> None:
        """It is gone, if nobody has removed it meanwhile."""
        found = self.cluster.pods.get(pod.meta.name)
        if found is not None and found.meta.uid == pod.meta.uid:
            self.cluster.remove(pod.meta.name)

    def pass_time(self, seconds: float) -> None:
        """The operator works, the run trains, and what is due comes to pass."""
        self.cluster.now += seconds
        ready = [one for one in self.due if one.at <= self.cluster.now]
        self.due = [one for one in self.due if one.at > self.cluster.now]
        for one in ready:
            one.what()
        self.settle()
        if self.trains():
            self.step += 1
            self.cluster.say(step=self.step, phase=Phase.RUNNING, last_step_at=self.cluster.now)
            self.settle()

    def trains(self) -> bool:
        """Whether every pod of the attempt is at work."""
        status, pods = self.cluster.status, list(self.cluster.pods.values())
        roles = [pod.role for pod in pods if not pod.ended and not pod.gated and pod.ready]
        wanted = [PodRole.TRAINER, PodRole.TRAINER, PodRole.ORCHESTRATOR, PodRole.INFERENCE]
        return status["phase"] in {Phase.STARTING, Phase.RUNNING} and all(
            roles.count(role) >= wanted.count(role) for role in wanted
        )

    def settle(self) -> None:
        """Let the operator work, a pass at a time; after each one what must hold holds."""
        for _ in range(50):
            before = self.cluster.status
            made = self.cluster.step()
            self.judge()
            if any(isinstance(action, AskToStop) for action in made.actions):
                self.stop()
            elif made.status == before:
                return
        raise AssertionError(f"no rest: {self.cluster.status}, {made.actions}")

    def stop(self) -> None:
        """The orchestrator does as it is asked, and so do the ranks."""
        for pod in list(self.cluster.pods.values()):
            if pod.role in ALONE and not pod.gated and not pod.ended:
                said = message_of_end(str(pod.role), ExitCode.STOPPED, "stopped", attempt=pod.attempt, step=self.step)
                self.cluster.end(pod.meta.name, ExitCode.STOPPED, said)

    def judge(self) -> None:
        """Raise AssertionError if something is as it must never be."""
        status = self.cluster.status
        ranks = [pod for pod in self.cluster.pods.values() if pod.role is PodRole.TRAINER]
        assert len({pod.attempt for pod in ranks if not pod.gated}) <= 1, "ranks of two attempts at once"
        assert status["attempt"] >= self.attempt
        assert status["phase"] != Phase.FAILED, status["message"]
        used = sum(status.get("control", {}).get("restartsUsed", {}).values())
        assert used <= self.faults, f"{used} restarts were used up by {self.faults} faults"
        self.attempt = status["attempt"]


def live(number: int) -> Life:
    """A life that is disturbed for a while, and then left alone until it trains again."""
    life = Life(number)
    rate = life.chance.choice([20.0, 60.0, 240.0])
    end = life.cluster.now + DISTURBED_S
    while life.cluster.now < end:
        life.pass_time(life.chance.expovariate(1 / rate) + 0.1)
        life.chance.choice(life.disturbances())()
    life.cluster.edit(suspend=False)
    end, step = life.cluster.now + CALM_S, life.step
    # It may train while an orchestrator that is being deleted has its grace; then it goes on with another one.
    while life.step < step + 5 or life.cluster.status["phase"] != Phase.RUNNING:
        assert life.cluster.now < end, f"does not train within {CALM_S:.0f} s: {life.cluster.status}"
        life.pass_time(10.0)
    if life.only_notices and life.notices:
        assert "restartsUsed" not in life.cluster.status["control"]
    return life


@pytest.mark.parametrize("number", campaign.campaign_params("spot lives", LIVES, 4))
def test_a_life_on_spot_capacity_trains_once_it_is_left_alone(number: int) -> None:
    live(number)
