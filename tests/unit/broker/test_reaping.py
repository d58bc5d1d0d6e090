"""Which sandboxes nobody has any use for, and what a run allows."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_broker.pods import sandbox_pod
from echorl_broker.reaping import why_reaped
from echorl_broker.runs import most_pods, within
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_operator.observed import decode
from echorl_operator.observed.records import PodPhase
from echorl_operator.observed.runs import RunKey, RunRecord

CREATED = 1_000_000_000.0
RUN = RunRecord(
    key=RunKey("research", "solve"),
    uid="run-1",
    resource_version="1",
    generation=1,
    created_at=CREATED,
    deleted_at=None,
    labels={},
    annotations={},
    spec={},
    status={"phase": "Running"},
)


def pod(labels, annotations, **status):
    meta = {"name": "p", "namespace": "research", "uid": "u", "resourceVersion": "1"}
    meta |= {"creationTimestamp": "2001-09-09T01:46:40Z", "labels": labels, "annotations": annotations}
    spec = {"containers": [{"name": "sandbox"}]}
    return msgspec.json.encode({"metadata": meta, "spec": spec, "status": {"phase": "Running", **status}})


LABELS = {"echorl.dev/run": "solve", "echorl.dev/run-uid": "run-1", "app.kubernetes.io/managed-by": "echorl-broker"}
SANDBOX = sandbox_pod(
    pod(
        {**LABELS, "echorl.dev/orchestrator-uid": "orchestrator-1"},
        {"echorl.dev/sandbox-key": "a", "echorl.dev/sandbox-ttl-seconds": "600"},
    )
)
ORCHESTRATOR = decode.pod(pod({}, {}))
ORCHESTRATOR = replace(ORCHESTRATOR, meta=replace(ORCHESTRATOR.meta, uid="orchestrator-1"))
OTHER = replace(ORCHESTRATOR, meta=replace(ORCHESTRATOR.meta, uid="orchestrator-2"))
ENDED = replace(SANDBOX, record=replace(SANDBOX.record, phase=PodPhase.FAILED))
LEAVING = replace(SANDBOX, record=replace(SANDBOX.record, meta=replace(SANDBOX.record.meta, deleted_at=CREATED)))


@pytest.mark.parametrize(
    ("sandbox", "run", "orchestrator", "age_s", "why"),
    [
        (SANDBOX, RUN, ORCHESTRATOR, 0.0, None),
        # Its time, what it may have taken to start, and a minute.
        (SANDBOX, RUN, ORCHESTRATOR, 960.0, None),
        (SANDBOX, RUN, ORCHESTRATOR, 961.0, "it outlived its time"),
        (SANDBOX, None, None, 0.0, "its run is gone"),
        (SANDBOX, replace(RUN, uid="run-2"), ORCHESTRATOR, 0.0, "its run is gone"),
        (SANDBOX, replace(RUN, deleted_at=CREATED), ORCHESTRATOR, 0.0, "its run is being deleted"),
        (SANDBOX, replace(RUN, status={"phase": "Succeeded"}), ORCHESTRATOR, 0.0, "its run is Succeeded"),
        (SANDBOX, replace(RUN, status={"phase": "Failed"}), ORCHESTRATOR, 0.0, "its run is Failed"),
        (SANDBOX, replace(RUN, status={"phase": "Suspended"}), ORCHESTRATOR, 0.0, "its run is Suspended"),
        (SANDBOX, RUN, None, 0.0, "the orchestrator that it was made for is gone"),
        (SANDBOX, RUN, OTHER, 0.0, "the orchestrator that it was made for is gone"),
        (ENDED, RUN, ORCHESTRATOR, 120.0, None),
        (ENDED, RUN, ORCHESTRATOR, 121.0, "it has ended"),
        (LEAVING, None, None, 1e6, None),
    ],
)
def test_what_nobody_has_use_for_goes(sandbox, run, orchestrator, age_s, why):
    assert why_reaped(sandbox, run, orchestrator, now=CREATED + age_s, start_deadline_s=300.0) == why


def test_a_pod_that_somebody_else_made_is_no_sandbox_whatever_it_says():
    labels = {**LABELS, "app.kubernetes.io/managed-by": "somebody"}
    assert sandbox_pod(pod(labels, {"echorl.dev/sandbox-key": "a"})).key == ""
    assert SANDBOX.key == "a"


@given(
    cpu=st.floats(1e-3, 1024),
    memory=st.integers(1, 1 << 45),
    disk=st.integers(1, 1 << 45),
    ttl_s=st.floats(1e-3, 1e8),
    gateway=st.booleans(),
)
def test_nothing_is_more_than_the_run_allows_and_nothing_more_than_was_asked_for(cpu, memory, disk, ttl_s, gateway):
    block = {"resources": {"cpu": 2.5, "memory": "1Gi", "disk": "10G"}, "ttl": "90m", "concurrency": 3}
    sandboxes = Sandboxes.model_validate({"provider": "pod", **block})
    limits = Limits(cpu=cpu, memory_bytes=memory, disk_bytes=disk)
    wanted = Wanted(run_uid="u", image="i", workdir="/w", limits=limits, ttl_s=ttl_s, gateway=gateway)
    cut = within(wanted, sandboxes)
    assert (cut.limits.cpu, cut.limits.memory_bytes) == (min(cpu, 2.5), min(memory, 1 << 30))
    assert (cut.limits.disk_bytes, cut.ttl_s) == (min(disk, 10**10), min(ttl_s, 5400.0))
    assert msgspec.structs.replace(cut, limits=limits, ttl_s=ttl_s) == wanted
    assert within(cut, sandboxes) == cut
    assert most_pods(sandboxes) == 12
