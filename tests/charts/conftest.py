"""Programs for tests below this folder; built once, like all programs of the test cluster (docs/test-cluster.md)."""

import pytest

from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.errors import ClusterError, Unavailable
from echorl_testing.kube.helm import Helm


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build programs before the first test: a build takes longer than a test may."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted = sorted(used & {"helm", "kubeconform"})
    if session.config.option.collectonly or not wanted:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            for name in wanted:
                Binaries().path(name)
    except ClusterError:
        return  # the fixture meets it again, and a test can skip or fail with it


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster."""
    try:
        return Helm(tmp_path_factory.mktemp("helm"))
    except Unavailable as error:
        pytest.skip(str(error))
