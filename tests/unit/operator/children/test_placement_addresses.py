import pytest
from yarl import URL

from echorl_operator.children.cluster_placement import ORCHESTRATOR_PORT, orchestrator_address


@pytest.mark.parametrize("ip", ["10.1.0.9", "fd00::9"])
def test_an_orchestrators_address_makes_a_url_of_either_family(ip: str) -> None:
    url = URL(f"http://{orchestrator_address(ip)}/state")
    assert (url.host, url.port) == (ip, ORCHESTRATOR_PORT)
