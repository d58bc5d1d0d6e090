"""Servers of environments of other libraries, as they come from the registry."""

import pytest

from echorl_testing import campaign

_HUBS = ["nemo-gym", "openenv", "verifiers"]


def of_hub(name: str) -> pytest.MarkDecorator:
    """Mark of all that is tried with one library; every run of the tests tries one of them."""
    return campaign.campaign_mark("hubs", _HUBS, 1, name)
