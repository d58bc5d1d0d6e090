"""``helm test`` on an installation: its run of three steps succeeds, and is gone afterwards."""

import pytest

from echorl_testing.operator.site import SYSTEM, Site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.vllm]


def test_helm_test_runs_three_steps(installed: Site) -> None:
    told = installed.transcript.run("helm", "test", "echorl", "--namespace", SYSTEM, "--timeout", "660s", "--logs")
    assert "Succeeded" in told
    runs = f"/apis/echorl.dev/v1alpha1/namespaces/{installed.namespace}/echorlruns"
    assert installed.cluster.api.find(f"{runs}/echorl-test") is None
