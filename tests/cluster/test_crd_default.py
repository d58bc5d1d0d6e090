"""A default that appears in the CRD, while a run lives."""

import asyncio
from pathlib import Path

import pytest
import yaml

from echorl_operator import names
from echorl_operator.kube.resources import RUN
from echorl_operator.names import PodRole
from echorl_testing.cluster.api import Api, ApiError
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.run_objects import CRD_FILE, CRDS, install_crd
from echorl_testing.kube.watch_history import BEGINNING_ANEW
from echorl_testing.operator.fault_campaign import Course
from echorl_testing.operator.operator_world import SPEC
from echorl_testing.operator.run_life import PATIENCE_S, Field, Life

pytestmark = pytest.mark.timeout(600)


async def test_a_default_that_appears_in_the_crd(api: Api, connection: Connection, tmp_path: Path) -> None:
    """Stored objects read back with it, at the same generation: nothing restarts until the user's next edit."""
    install_crd(api)
    crd = yaml.safe_load(CRD_FILE.read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["trainer"]["properties"]["activationCheckpointing"]["default"] = "full"
    async with Field(api, connection, tmp_path) as field, field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang = [pod["metadata"]["uid"] for pod in life.pods(PodRole.TRAINER)]
        life.history.expect_hole(RUN)
        try:
            api.apply(f"{CRDS}/{crd['metadata']['name']}", crd)
            annotated = {"metadata": {"annotations": {"by": "somebody"}}}

            async def defaulted() -> bool:
                try:
                    run = await life.api.patch(f"{life.runs}/one", annotated)
                except ApiError as error:
                    if error.code in BEGINNING_ANEW:
                        return False
                    raise
                return bool(run["spec"]["trainer"].get("activationCheckpointing") == "full")

            async with asyncio.timeout(PATIENCE_S):
                while not await defaulted():  # noqa: ASYNC110 - the API server takes the CRD over in its own time
                    await asyncio.sleep(0.5)
            await life.until("the operator sees it", lambda: life.status() and _defaulted(life))
            await Course(field).hold(life, 3)
            assert [pod["metadata"]["uid"] for pod in life.pods(PodRole.TRAINER)] == gang
            assert life.status()["attempt"] == 1
            await life.edit(maxSteps=30)
            await life.running(2)
            assert "spec.trainer.activationCheckpointing" in await life.note("Edited: attempt 2")
            assert life.problems() == []
        finally:
            install_crd(api)
            # What comes next must not meet the change.
            async with asyncio.timeout(PATIENCE_S):
                while not await _has_no_default(life):  # noqa: ASYNC110 - the same
                    await asyncio.sleep(0.5)


async def _has_no_default(life: Life) -> bool:
    """Whether the API server fills nothing into new runs' trainers."""
    document = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": names.KIND, "metadata": {"name": "another"}}
    try:
        run = await life.api.request("POST", life.runs, {**document, "spec": SPEC}, query={"dryRun": "All"})
    except ApiError as error:
        if error.code in BEGINNING_ANEW:
            return False
        raise
    return "activationCheckpointing" not in run["spec"]["trainer"]


def _defaulted(life: Life) -> bool:
    run = life.history.get(life.namespace, "EchoRLRun", "one") or {}
    return bool(run["spec"]["trainer"].get("activationCheckpointing") == "full")
