"""Carries out a plan's actions, in order. Which call each becomes; nothing is decided here."""

from collections.abc import Mapping
from typing import Any

import msgspec

from echorl_operator import names
from echorl_operator.kube.writer import Writer
from echorl_operator.observed.runs import RunRecord
from echorl_operator.orchestrators.polling import Orchestrators, Target
from echorl_operator.plan.actions import (
    Action,
    Apply,
    AskToStop,
    ChangeLive,
    ChangeOwner,
    Create,
    Delete,
    DeleteRun,
    LiftGate,
    RetryController,
)
from echorl_operator.plan.drift import needs_apply


class StillDiffers(Exception):
    """An apply was accepted, and yet what came back lacks part of it: something else changes this object."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} does not keep what is applied: a webhook or another controller changes it")
        self.kind, self.name = kind, name


class Executor:
    """One action at a time."""

    def __init__(self, writer: Writer, orchestrators: Orchestrators) -> None:
        self._writer, self._orchestrators = writer, orchestrators

    async def carry_out(self, run: RunRecord, action: Action) -> None:
        """Do one action of a run's plan.

        Raises:
            errors.ApiError: the write failed.
            NotLeading: nothing was sent.
            StillDiffers: an apply had no lasting effect.
        """
        namespace = run.key.namespace
        match action:
            case Apply():
                reply = await self._writer.apply(namespace, action.body, action.resource_version)
                _check(action.body, reply)
            case Create():
                await self._create(namespace, action)
            case Delete():
                await self._writer.delete(
                    namespace, action.api_version, action.kind, action.name, uid=action.uid, grace_s=action.grace_s
                )
            case LiftGate():
                await self._writer.lift_gate(
                    namespace, action.name, uid=action.uid, resource_version=action.resource_version
                )
            case ChangeOwner():
                await self._writer.change_owner(
                    namespace,
                    action.api_version,
                    action.kind,
                    action.name,
                    uid=action.uid,
                    owner=action.owner,
                    owned=action.owned,
                )
            case RetryController():
                await self._writer.annotate(
                    namespace, action.kind, action.name, uid=action.uid, annotations={names.ANNOTATION_RETRY: action.at}
                )
            case AskToStop():
                self._writer.check_leading("asking an orchestrator to stop")
                await self._orchestrators.ask_to_stop(Target(run.key, run.uid, action.attempt, action.address))
            case ChangeLive():
                self._writer.check_leading("changing an orchestrator's settings")
                await self._orchestrators.change_live(
                    Target(run.key, run.uid, action.attempt, action.address), action.settings
                )
            case DeleteRun():
                await self._writer.delete_run(run.key, action.uid)

    async def _create(self, namespace: str, action: Create) -> None:
        if not await self._writer.create(namespace, action.body) and action.relabel:
            await self._writer.relabel(namespace, action.body)


def _check(desired: Mapping[str, Any], reply: bytes) -> None:
    if needs_apply(desired, msgspec.json.decode(reply)):
        raise StillDiffers(str(desired["kind"]), str(desired["metadata"]["name"]))
