"""A broker says why there is no sandbox in the contract's own words."""

from typing import get_args

from echorl_core.wire import sandboxes
from echorl_orchestrator.sandboxes.contract import SandboxLoss


def test_losses_of_the_wire_are_those_of_the_contract() -> None:
    assert list(get_args(sandboxes.Loss)) == [str(loss) for loss in SandboxLoss]
