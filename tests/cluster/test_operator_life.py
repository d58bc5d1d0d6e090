"""A run's life on a real control plane: the operator's own passes, real controllers, played pods."""

import time

import pytest

from echorl_core.names import ExitCode
from echorl_core.termination_message import message_of_end
from echorl_operator.reconcile.status_throttle import INTERVAL_S
from echorl_testing import campaign
from echorl_testing.cluster.api import STRATEGIC_MERGE_PATCH, ApiError
from echorl_testing.load import stretched
from echorl_testing.operator.kstatus import judged
from echorl_testing.operator.lives_together import Together, operated
from echorl_testing.operator.operator_world import World
from echorl_testing.operator.scripted_cluster import prepared
from echorl_testing.waiting import until

pytestmark = pytest.mark.timeout(600)

TOLD_S = 10.0
"""On a machine that keeps up."""


together = Together(operated, at_once=5)


async def both_engines(world: World) -> None:
    """A run is Running without its engines: they come when their controllers make them."""
    await world.until("both engines are there", lambda: len(world.pods("inference")) == 2)


def at_rest(world: World) -> bool:
    """Whether no pass is due, and none is under way."""
    queue = world.operator.queue
    return not len(queue) and not queue.longest_running()


@together
async def test_a_run_is_prepared_admitted_trained_and_finished(world: World) -> None:
    world.create()
    await world.phase("Running", attempt=1)
    assert set(world.pods("trainer")) == {"one-trainer-0", "one-trainer-1"}
    await both_engines(world)
    status = world.status()
    assert status.get("resumeStep", 0) == 0
    assert [entry["phase"] for entry in status["timeline"]] == ["Preparing", "Starting", "Running"]
    played = world.cluster.orchestrators["one"]
    played.say(step=7, reward=0.5, checkpoint={"step": 5, "committed_at": "2026-01-01T00:00:00Z", "size_bytes": 9})
    await world.until("progress in status", lambda: world.status().get("step") == 7)
    assert world.status()["reward"] == "0.500"
    assert world.status()["checkpoint"]["step"] == 5
    await world.cluster.succeed()
    await world.phase("Succeeded")
    await world.until("GPUs are free", lambda: not world.pods("trainer") and not world.pods("inference"))
    assert world.condition("Failed")["status"] == "False"
    assert judged(world.run()) == "Current"
    assert set(world.pods("orchestrator")) == {"one-orchestrator"}, "it stays for its log"


@together
async def test_an_environment_that_is_an_image_is_served_before_the_run_begins_and_not_after_it(world: World) -> None:
    def servers() -> list[str]:
        path = f"/apis/apps/v1/namespaces/{world.namespace}/deployments"
        found = world.api.get(path, labelSelector="echorl.dev/role=environment")["items"]
        return [one["metadata"]["name"] for one in found]

    world.cluster.held = {"environment"}
    games = {"name": "wordle", "type": "openenv:registry.example.org/games/wordle:1", "server": {"replicas": 2}}
    world.create(environments={"train": [games]})
    await world.until(
        "what keeps it is told", lambda: "one-env-wordle-" in world.condition("Blocked").get("message", "")
    )
    assert "cannot be scheduled: the cluster has no nodes" in world.status()["message"]
    await world.until("nothing else is missing", lambda: len(world.cluster.admitted) == 2)
    assert not world.pods("orchestrator")
    world.cluster.held = set()
    await world.phase("Running", attempt=1)
    service = world.api.get(f"/api/v1/namespaces/{world.namespace}/services/one-env-wordle")
    assert service["spec"]["clusterIP"] not in ("", "None")
    world.edit({"environments": {"train": [{**games, "server": {"replicas": 3}}]}})
    counted = {"ready": 3, "desired": 3}
    await world.until("three serve", lambda: world.status()["roles"].get("environment") == counted)
    assert world.status()["attempt"] == 1
    await world.cluster.succeed()
    await world.phase("Succeeded")
    await world.until("nothing is served any more", lambda: not world.pods("environment") and servers() == [])


@together
async def test_nothing_is_written_while_nothing_changes_and_no_event_read_while_nothing_is_wrong(world: World) -> None:
    world.create()
    await world.phase("Running")

    def counted() -> bool:
        status = world.status()
        # The Deployment's controller counts in its own time.
        return (sum(role["ready"] for role in status["roles"].values()), status["inference"]["replicas"]) == (5, 2)

    await world.until("every pod is counted", counted)
    await until(lambda: at_rest(world))
    # Before, a controller may have been so late with a pod that it was asked about.
    before, version, read = world.writes(), world.run()["metadata"]["resourceVersion"], world.requests("list", "events")
    # For longer than a status that only tells how things go on is kept back.
    passes, ends_at = 0, time.monotonic() + 2 * INTERVAL_S
    while passes < 20 or time.monotonic() < ends_at:
        world.operator.queue.add_all(record.key for record in world.operator.cache.runs)
        await until(lambda: at_rest(world))
        passes += 1
    assert world.writes() == before
    assert world.run()["metadata"]["resourceVersion"] == version
    assert world.requests("list", "events") == read


@together
async def test_a_rank_that_crashes_takes_the_gang_to_a_new_attempt(world: World) -> None:
    world.create()
    await world.phase("Running", attempt=1)
    await both_engines(world)
    engines = {name: pod["metadata"]["uid"] for name, pod in world.pods("inference").items()}
    old = {pod["metadata"]["uid"] for pod in world.pods("trainer").values()}
    world.cluster.prepare = lambda attempt: prepared(attempt, resume_step=5)
    await world.until("both ranks run", lambda: len(world.cluster.admitted) >= 2)
    await world.cluster.end("one-trainer-1", 1, message_of_end("trainer", 1, "index out of range", attempt=1))
    await world.phase("Running", attempt=2)
    status = world.status()
    assert status["restartsByRole"] == {"trainer": 1}
    assert status["resumeStep"] == 5
    assert old.isdisjoint(pod["metadata"]["uid"] for pod in world.pods("trainer").values())
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods("inference").items()} == engines
    await world.until("a whole gang", lambda: len(world.cluster.admitted) >= 4)
    assert [attempt for _, attempt in world.cluster.admitted] == [1, 1, 2, 2]


@together
async def test_a_deleted_rank_is_a_lost_gang(world: World) -> None:
    world.create()
    await world.phase("Running", attempt=1)
    # The played orchestrator trains as soon as it runs, whether or not the pods of the gang were seen.
    await world.until("the first gang", lambda: len(world.cluster.admitted) == 2)
    world.api.delete(f"/api/v1/namespaces/{world.namespace}/pods/one-trainer-0")
    await world.phase("Running", attempt=2)
    await world.until("a whole gang", lambda: len(world.cluster.admitted) >= 4)
    assert [attempt for _, attempt in world.cluster.admitted] == [1, 1, 2, 2]


@campaign.ALL  # its node is not there: 40 seconds later the control plane removes the pod by itself
@together
async def test_a_drained_rank_is_a_notice_that_uses_up_no_restart(world: World) -> None:
    world.create(failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})
    await world.phase("Running", attempt=1)
    await world.until("the first gang", lambda: len(world.cluster.admitted) == 2)
    path = f"/api/v1/namespaces/{world.namespace}/pods/one-trainer-0"
    # On a node, so that the API server leaves it its grace period.
    node = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "one-trainer-0"}, "target": {"name": "node-1"}}
    world.api.create(f"{path}/binding", node)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}
    world.api.patch(f"{path}/status", {"status": {"conditions": [target]}}, content_type=STRATEGIC_MERGE_PATCH)
    world.api.delete(path)
    await world.until("the notice", lambda: world.status().get("notices") == 1)
    told = "one-trainer-0 was given notice: EvictionByEvictionAPI"
    await world.until("that its gang saves", lambda: world.status()["message"].startswith(told))
    assert world.status()["attempt"] == 1
    saved = message_of_end("trainer", ExitCode.NOTICE, "its gang was given notice: step 7 is saved", attempt=1, step=7)
    for name in ("one-trainer-1", "one-trainer-0"):
        await world.cluster.end(name, ExitCode.NOTICE, saved)
    world.api.delete(path, grace_s=0)
    await world.phase("Running", attempt=2)
    status = world.status()
    assert (status["notices"], status["lastNotice"]) == (1, f"attempt 1: {told}")
    assert "restartsUsed" not in status["control"]
    events = world.api.get(f"/apis/events.k8s.io/v1/namespaces/{world.namespace}/events")["items"]
    assert [event["note"] for event in events if event["reason"] == "Notice"] == [f"attempt 1: {told}"]


@together
async def test_an_orchestrator_that_crashes_restarts_alone(world: World) -> None:
    world.create()
    await world.phase("Running", attempt=1)
    trainers = {name: pod["metadata"]["uid"] for name, pod in world.pods("trainer").items()}
    first = world.cluster.orchestrators["one"]
    await world.cluster.end("one-orchestrator", 1)
    await world.until("another orchestrator", lambda: world.cluster.orchestrators["one"] is not first)
    await world.phase("Running", attempt=1)
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods("trainer").items()} == trainers
    assert world.status()["restartsByRole"] == {"orchestrator": 1}


@together
async def test_a_code_that_is_never_restarted_fails_the_run_with_its_words(world: World) -> None:
    world.create()
    await world.phase("Running")
    words = message_of_end("trainer", ExitCode.NON_FINITE, "step 3: the loss is NaN (sample 17)", attempt=1)
    await world.cluster.end("one-trainer-0", int(ExitCode.NON_FINITE), words)
    await world.phase("Failed")
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "NonFinite")
    assert "step 3: the loss is NaN (sample 17)" in failed["message"]
    await world.until("GPUs are free", lambda: not world.pods("trainer") and not world.pods("inference"))


@together
async def test_restarts_are_used_up(world: World) -> None:
    world.create()
    for attempt in (1, 2, 3):
        await world.phase("Running", attempt=attempt)
        await world.cluster.end("one-trainer-0", 1)
    await world.phase("Failed", attempt=3)
    assert "2 restarts of trainer are used up (failurePolicy.maxRestarts)" in world.condition("Failed")["message"]


@together
async def test_bad_input_of_prepare_fails_the_run(world: World) -> None:
    message = "model.name: /models/tiny does not exist"
    world.cluster.prepare = lambda attempt: message_of_end("prepare", ExitCode.BAD_INPUT, message, attempt=attempt)
    world.create()
    await world.phase("Failed")
    assert message in world.condition("Failed")["message"]
    assert not world.cluster.admitted


@together
async def test_suspend_asks_for_a_checkpoint_and_resume_goes_on(world: World) -> None:
    world.create()
    await world.phase("Running")
    played = world.cluster.orchestrators["one"]
    world.edit({"suspend": True})
    await world.until("the orchestrator is asked to stop", lambda: played.asked_to_stop)
    assert world.pods("trainer")
    await world.cluster.end("one-orchestrator", int(ExitCode.STOPPED))
    await world.phase("Suspended")
    assert not world.pods()
    world.edit({"suspend": False})
    await world.phase("Running", attempt=2)


@together
async def test_live_edits_restart_nothing_and_others_restart_the_gang(world: World) -> None:
    world.create()
    await world.phase("Running")
    trainers = {pod["metadata"]["uid"] for pod in world.pods("trainer").values()}
    world.edit({"inference": {"replicas": 3}})
    await world.until("a third engine", lambda: len(world.pods("inference")) == 3)
    assert {pod["metadata"]["uid"] for pod in world.pods("trainer").values()} == trainers
    assert world.status()["attempt"] == 1
    played = world.cluster.orchestrators["one"]
    world.edit({"maxSteps": 33, "checkpoint": {"interval": 11}})
    await world.until(
        "the orchestrator hears of it", lambda: [one.get("max_steps") for one in played.live][-1:] == [33]
    )
    assert (played.live[-1]["checkpoint"]["interval"], played.live[-1]["generation"]) == (11, 3)
    assert {pod["metadata"]["uid"] for pod in world.pods("trainer").values()} == trainers
    world.edit({"trainer": {"optimizer": {"lr": 1e-4}}})
    await world.phase("Running", attempt=2)
    with pytest.raises(ApiError, match="model"):
        world.edit({"model": {"name": "/models/other"}})


@together
async def test_a_manifest_that_only_the_operator_can_refuse_waits_with_the_words_of_validate(world: World) -> None:
    kwargs = {"loss": {"type": "dppo", "kwargs": {"x": 1}}}
    world.create(algorithm={"groupSize": 4, "batchSize": 16, **kwargs})
    await world.until(
        "the problem is told",
        lambda: "spec.algorithm.loss.kwargs" in world.status().get("message", ""),
        stretched(TOLD_S),
    )
    assert world.condition("InvalidSpec")["status"] == "True"
    assert judged(world.run()) == "Failed"
    world.edit({"algorithm": {"loss": None}})
    await world.until("the edit is in progress", lambda: judged(world.run()) == "InProgress")
    await world.phase("Running")
    assert judged(world.run()) == "Current"
    world.edit({"algorithm": {"loss": kwargs["loss"]}})
    await world.until("the refusal is told", lambda: judged(world.run()) == "Failed")
    assert world.status()["phase"] == "Running"


@together
async def test_a_stall_restarts_the_gang_and_says_so(world: World) -> None:
    world.create(stallPolicy={"noStepFor": "3s"})

    def has_run(attempt: int) -> bool:
        # Each attempt runs for three seconds alone: a look at its phase may come too late.
        return ("Running", attempt) in {(one["phase"], one["attempt"]) for one in world.status().get("timeline", [])}

    await world.until("a second attempt has run", lambda: has_run(2))
    assert has_run(1)
    events = world.api.get(f"/apis/events.k8s.io/v1/namespaces/{world.namespace}/events")["items"]
    assert any("no step for" in event.get("note", "") for event in events)


@together
async def test_time_limits(world: World) -> None:
    # Long enough to be seen, even by a look that is late.
    world.create(activeDeadlineSeconds=4, ttlSecondsAfterFinished=10)
    await world.until("the deadline is told", lambda: world.condition("Failed").get("reason") == "DeadlineExceeded")
    await world.until("the run is gone", lambda: world.api.find(f"{world.runs}/one") is None)


@together
async def test_a_child_that_somebody_takes_away_comes_back(world: World) -> None:
    world.create()
    await world.phase("Running")
    services = f"/api/v1/namespaces/{world.namespace}/services"
    world.api.delete(f"{services}/one-trainer")
    await world.until("the Service is back", lambda: world.api.find(f"{services}/one-trainer") is not None)
    deployment = f"/apis/apps/v1/namespaces/{world.namespace}/deployments/one-inference"
    world.api.patch(deployment, {"spec": {"replicas": 5}})
    await world.until("replicas are as the manifest says", lambda: world.api.get(deployment)["spec"]["replicas"] == 2)
    assert world.status()["attempt"] == 1


@together
async def test_a_run_that_is_deleted_takes_its_children_along_and_the_next_of_its_name_does_not_meet_it(
    world: World,
) -> None:
    world.create()
    await world.phase("Running", attempt=1)
    first = world.run()["metadata"]["uid"]
    world.api.delete(f"{world.runs}/one")
    await world.until("the run is gone", lambda: world.api.find(f"{world.runs}/one") is None)
    world.create()
    await world.phase("Running")
    second = world.run()["metadata"]["uid"]
    await world.until(
        "only the new run's pods are left",
        lambda: {pod["metadata"]["labels"]["echorl.dev/run-uid"] for pod in world.pods().values()} == {second},
    )
    assert first != second
    world.api.delete(f"{world.runs}/one")
    await world.until("no pod is left", lambda: not world.pods())
    claims = world.api.get(f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims")["items"]
    assert [claim["metadata"]["name"] for claim in claims] == ["one-volume"]
