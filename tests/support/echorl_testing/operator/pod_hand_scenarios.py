"""People who take pods, sets and status away from under a run: what takes the gang along, and what does not."""

from collections.abc import Awaitable, Callable, Mapping

from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_testing.operator.fault_campaign import Course, Scenario, unharmed
from echorl_testing.operator.hand_scenarios import child_path, followed, gang_of, ours
from echorl_testing.operator.operator_world import SPEC
from echorl_testing.operator.run_life import Life

Hand = Callable[[Life], Awaitable[None]]


async def _restarted(course: Course, hand: Hand, why: str) -> str:
    """What takes a pod of the gang away takes the gang to a new attempt, and says so."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        await hand(life)
        await life.running(2, await course.patience_s() + 10)
        told = await life.note("GangRestarted: attempt 2")
        await life.finish()
        unharmed_but_remade(life)
        return f"{why}: attempt 2, told as {told!r}"


def unharmed_but_remade(life: Life) -> None:
    """As ``unharmed``, but the test took children away itself."""
    assert [one for one in life.problems() if "was made" not in one] == []
    assert life.admitted() == [1, 1, 2, 2]


async def _rank_deleted(course: Course) -> str:
    async def hand(life: Life) -> None:
        await life.api.delete(child_path(life, "Pod", "one-trainer-0"))

    return await _restarted(course, hand, "a rank's pod is deleted")


async def _set_deleted(course: Course) -> str:
    async def hand(life: Life) -> None:
        await life.api.delete(child_path(life, "StatefulSet", "one-trainer"))

    return await _restarted(course, hand, "the StatefulSet is deleted with its pods")


async def _set_scaled(course: Course) -> str:
    async def hand(life: Life) -> None:
        scale = {"spec": {"replicas": 0}}
        await life.api.patch(f"{child_path(life, 'StatefulSet', 'one-trainer')}/scale", scale)

    return await _restarted(course, hand, "the StatefulSet is scaled to 0")


async def _rank_relabelled(course: Course) -> str:
    """A pod that claims to be of another attempt is none of this gang; so far off, its number counts for nothing."""
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        relabelled = {"metadata": {"labels": {names.LABEL_ATTEMPT: "7"}}}
        await life.api.patch(child_path(life, "Pod", "one-trainer-0"), relabelled)
        await life.running(2, await course.patience_s() + 10)
        await life.finish()
        assert life.admitted() == [1, 1, 2, 2]
        return "the gang begins anew as attempt 2"


async def _set_orphaned(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        gang = gang_of(life)
        old = life.history.get(life.namespace, "StatefulSet", "one-trainer")
        assert old is not None
        await life.api.delete(child_path(life, "StatefulSet", "one-trainer"), propagation="Orphan")

        def adopted() -> bool:
            new = life.history.get(life.namespace, "StatefulSet", "one-trainer")
            owner = new["metadata"]["uid"] if new is not None else ""
            owners = [pod["metadata"].get("ownerReferences", [{}])[0].get("uid") for pod in life.pods(PodRole.TRAINER)]
            return owner != old["metadata"]["uid"] and owners == [owner, owner]

        await life.until("another StatefulSet has the same pods", adopted, await course.patience_s())
        assert gang_of(life) == gang
        await life.running(1)
        await life.finish()
        assert life.admitted() == [1, 1]
        return "another StatefulSet adopts the pods; the gang trains on"


async def _single_pods(course: Course) -> str:
    """Engine, orchestrator and prepare pods are deleted; none of them is the gang's."""
    async with course.field.life() as life, life.operated():
        life.cluster.held.add(PodRole.PREPARE)
        await life.create()
        for role, attempt, count in (
            (PodRole.PREPARE, None, 1),
            (PodRole.INFERENCE, 1, SPEC["inference"]["replicas"]),
            (PodRole.ORCHESTRATOR, 1, 1),
        ):
            if attempt is not None:
                life.cluster.held.clear()
                life.cluster.look_again()
                await life.running(attempt)
            await life.until(f"{role} is there", lambda role=role, count=count: len(life.pods(role)) == count)
            first = life.cluster.orchestrators.get("one")
            old = life.pods(role)[0]["metadata"]
            await life.api.delete(child_path(life, "Pod", old["name"]))

            def another(role: PodRole = role, uid: str = old["uid"], count: int = count) -> bool:
                uids = [pod["metadata"]["uid"] for pod in life.pods(role)]
                return uid not in uids and len(uids) == count

            await life.until(f"another {role}", another, await course.patience_s())
        await followed(life, first)
        await life.finish()
        unharmed(life, [1, 1])
        return "each is made anew alone; the gang trains on"


async def _claim_deleted(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        await life.api.delete(child_path(life, "PersistentVolumeClaim", "one-volume"))
        await life.until("the claim is gone", lambda: not ours(life, "PersistentVolumeClaim"))
        await life.lose_a_rank(1)
        await life.running(2)
        await life.until("the claim is back", lambda: ours(life, "PersistentVolumeClaim"))
        await life.finish()
        assert life.admitted() == [1, 1, 2, 2]
        return "made anew with the next attempt, whose prepare tells the step it begins at"


async def _status_lost(course: Course) -> str:
    async with course.field.life() as life, life.operated():
        await life.create()
        await life.running(1)
        await life.api.replace(f"{life.runs}/one", lambda run: {**run, "status": {}}, subresource="/status")
        await life.running(2, await course.patience_s() + 10)
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        return "the attempt is found in labels; the gang begins anew as the next one"


POD_HANDS: Mapping[str, Scenario] = {
    "people delete a rank's pod": _rank_deleted,
    "people delete the StatefulSet": _set_deleted,
    "people delete the claim": _claim_deleted,
    "people delete the StatefulSet, not its pods": _set_orphaned,
    "people scale the StatefulSet to 0": _set_scaled,
    "people relabel a rank's pod": _rank_relabelled,
    "people delete prepare, engine, orchestrator": _single_pods,
    "people clear the status": _status_lost,
}
