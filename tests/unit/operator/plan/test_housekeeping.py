"""A token comes back."""

from echorl_operator import names
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase
from echorl_operator.plan import housekeeping
from echorl_operator.plan.actions import Create
from echorl_operator.plan.builder import PlanBuilder
from echorl_testing.operator.observed_worlds import container, observed, pod
from echorl_testing.operator.operator_world import SETTINGS
from echorl_testing.operator.rendered import manifest, rendered


def test_a_pod_that_lacks_the_token_gets_it():
    rendering = rendered(manifest("quickstart"))
    lacking = {"reason": "CreateContainerConfigError", "message": f'secret "{names.token("one")}" not found'}
    for changes, created in ((lacking, 1), ({**lacking, "message": 'secret "hub" not found'}, 0), ({}, 0)):
        waiting = container("trainer", ContainerPhase.WAITING, **changes)
        builder = PlanBuilder(
            observed(pod("one-trainer-0", PodRole.TRAINER, containers=(waiting,))), SETTINGS, "a token"
        )
        housekeeping.restore_token(builder, rendering)
        assert len([one for one in builder.actions if isinstance(one, Create)]) == created
