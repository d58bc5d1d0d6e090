"""Old ControllerRevisions go, and a token comes back."""

from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, ContainerPhase, Kind
from echorl_operator.plan import housekeeping
from echorl_operator.plan.actions import Create, Delete
from echorl_operator.plan.draft import Draft
from echorl_testing.observed_worlds import container, meta, observed, pod, run
from echorl_testing.operator_world import SETTINGS
from echorl_testing.rendered import manifest, rendered


def revisions(*revision_names: str) -> tuple[ChildRecord, ...]:
    return tuple(ChildRecord(Kind.REVISION, meta(name), b"{}") for name in revision_names)


def test_the_newest_revisions_and_the_one_in_use_stay():
    children = revisions("one-10-12", "one-2-3", "one-1-1", "one-9-11", "one-1-2", "one-9-9", "one-2-2")
    draft = Draft(observed(children=children, run=run({"revision": "one-2-2"})), SETTINGS, "a token")
    housekeeping.drop_old_revisions(draft)
    assert [one.name for one in draft.actions if isinstance(one, Delete)] == ["one-1-1", "one-1-2", "one-2-3"]
    assert {(one.api_version, one.kind) for one in draft.actions if isinstance(one, Delete)} == {
        ("apps/v1", "ControllerRevision")
    }


def test_few_revisions_stay():
    draft = Draft(observed(children=revisions("one-1-1", "one-1-2", "one-2-2", "one-2-3")), SETTINGS, "a token")
    housekeeping.drop_old_revisions(draft)
    assert [one.name for one in draft.actions if isinstance(one, Delete)] == ["one-1-1"]


def test_configs_of_older_renderings_go_and_those_of_engines_last():
    rendering = rendered(manifest("quickstart"))
    run_name = rendering.run
    current = [body["metadata"]["name"] for body in rendering.common if body["kind"] == "ConfigMap"]
    old = [f"{run_name}-trainer-0000000000", f"{run_name}-inference-0000000000"]
    maps = tuple(ChildRecord(Kind.CONFIG_MAP, meta(name), b"{}") for name in (*current, *old))
    once, twice = (f"{run_name}-4-7",), (f"{run_name}-4-7", f"{run_name}-4-8")
    for updated, made, gone in ((1, once, old[:1]), (2, once, old), (2, twice, [])):
        engines = ChildRecord(
            Kind.DEPLOYMENT, meta(names.inference(run_name)), b"{}", observed_generation=1, replicas=2, updated=updated
        )
        older = (*revisions(f"{run_name}-3-7"), *revisions(*made))
        draft = Draft(observed(children=(*maps, *older, engines), run=run({"attempt": 4})), SETTINGS, "a token")
        housekeeping.drop_old_configs(draft, rendering)
        assert [one.name for one in draft.actions if isinstance(one, Delete)] == gone


def test_a_pod_that_lacks_the_token_gets_it():
    rendering = rendered(manifest("quickstart"))
    lacking = {"reason": "CreateContainerConfigError", "message": f'secret "{names.token("one")}" not found'}
    for changes, created in ((lacking, 1), ({**lacking, "message": 'secret "hub" not found'}, 0), ({}, 0)):
        waiting = container("trainer", ContainerPhase.WAITING, **changes)
        draft = Draft(observed(pod("one-trainer-0", PodRole.TRAINER, containers=(waiting,))), SETTINGS, "a token")
        housekeeping.restore_token(draft, rendering)
        assert len([one for one in draft.actions if isinstance(one, Create)]) == created
