"""A real control plane for every test below this folder; see docs/test-cluster.md."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster import namespaces
from echorl_testing.cluster.api import Api, granted
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.errors import ClusterError, Unavailable
from echorl_testing.cluster.preparation import prepare
from echorl_testing.cluster.processes import wait_for
from echorl_testing.cluster.real_node import RealNode
from echorl_testing.kube.helm import CHART, CRDS, Helm
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.lives_together import Ends, Together
from echorl_testing.sandboxes.agent_sandbox import install_sandbox_crds
from echorl_testing.sandboxes.broker import ACCOUNT, Sites, grant

_CHART_DEADLINE_S = 180.0
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with the real node come last: it starts once, and meets no test that has no nodes."""
    items.sort(key=lambda item: "real_node" in getattr(item, "fixturenames", ()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before the first test: a build takes longer than a test may."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly or "control_plane" not in wanted:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    # The fixture meets an error again, and a test can skip or fail with it.
    with capture.global_and_fixture_disabled(), suppress(ClusterError):
        prepare(Binaries())


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd, API server, controller manager, scheduler and kwok; no nodes. Ends with the session, however that ends."""
    try:
        cluster = clusters.start(tethered=True)
    except Unavailable as error:
        pytest.skip(str(error))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def connection(control_plane: Cluster) -> Connection:
    """How to reach the control plane: URL, authority, kubeconfig, tokens of the admin and of users."""
    return control_plane.connection


@pytest.fixture(scope="session")
def api(control_plane: Cluster) -> Api:
    """Requests as the admin."""
    return control_plane.api


@pytest.fixture
def make_namespace(api: Api) -> Iterator[Callable[..., str]]:
    """Makes namespaces that accept pods, with the labels that are given. Deleted after the test."""
    made: list[str] = []

    def make(labels: dict[str, str] | None = None) -> str:
        name = f"test-{next(_numbers)}"
        made.append(name)
        namespaces.make_namespace(api, name, labels)
        return name

    yield make
    for name in made:
        api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespace(make_namespace: Callable[..., str]) -> str:
    """An empty namespace of a name that no other test of the session has."""
    return make_namespace()


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest, api: Api, connection: Connection) -> Ends:
    """What came of the module's tests that live together, as far as they were chosen."""
    install_crd(api)
    chosen = {item.name for item in request.session.items if item.path == request.path}
    together: Together[Any] = request.module.together
    return asyncio.run(together.live(api, connection, chosen))


@pytest.fixture
def fake_nodes(control_plane: Cluster) -> Iterator[Callable[..., list[str]]]:
    """Adds fake nodes for the test: ``fake_nodes(gpu=2, cpu=1, gpus=8)`` returns their names."""
    added: list[str] = []
    sets = itertools.count(1)

    def add(*, gpu: int = 0, cpu: int = 0, gpus: int = 8) -> list[str]:
        names = control_plane.add_fake_nodes(gpu=gpu, cpu=cpu, gpus=gpus, prefix=f"fake{next(sets)}")
        added.extend(names)
        return names

    yield add
    control_plane.remove_nodes(added)


@pytest.fixture(scope="session")
def node(control_plane: Cluster) -> Iterator[RealNode]:
    """The real node, which does not run yet. Ends with the session."""
    yield control_plane.node
    control_plane.node.stop()


@pytest.fixture
def real_node(node: RealNode) -> str:
    """Name of a node that runs real pods from ``echorl_testing.cluster.images.BUSYBOX``; it stays for later tests."""
    try:
        node.ensure()
    except Unavailable as error:
        pytest.skip(str(error))
    return node.name


@pytest.fixture(scope="session")
def helm(api: Api, connection: Connection, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm on the cluster, where charts/echorl-crds is installed."""
    try:
        made = Helm(tmp_path_factory.mktemp("helm"), connection.kubeconfig)
    except Unavailable as error:
        pytest.skip(str(error))
    # Other tests may have applied the CRD already.
    made("install", "echorl-crds", CRDS, "--namespace", "default", "--take-ownership", "--wait")
    wait_for(
        "runs are served",
        lambda: granted(lambda: api.get("/apis/echorl.dev/v1alpha1/echorlruns")),
        seconds=_CHART_DEADLINE_S,
    )
    return made


@pytest.fixture
def release(helm: Helm, make_namespace: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """Installs charts/echorl as ``echorl`` in a namespace of its own, which it returns."""
    made: list[str] = []

    def install(values: Mapping[str, Any] | None = None, *, chart: Path = CHART, wait: bool = False) -> str:
        namespace = make_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
        made.append(namespace)
        more = ["--wait", "--timeout", "150s"] if wait else []
        helm("install", "echorl", chart, "--namespace", namespace, *more, values=values or {})
        return namespace

    yield install
    for namespace in made:
        helm("uninstall", "echorl", "--namespace", namespace, "--ignore-not-found")


@pytest.fixture
def sandbox_crds(api: Api) -> None:
    """Sandboxes, pools and claims of agent-sandbox, which the cluster knows from then on."""
    install_sandbox_crds(api)


@pytest.fixture
def brokers(
    request: pytest.FixtureRequest,
    api: Api,
    control_plane: Cluster,
    connection: Connection,
    make_namespace: Callable[..., str],
    tmp_path: Path,
) -> Sites:
    """Starts brokers with the rights of the chart, for a namespace that admits ``restricted`` pods alone.

    Its runs' provider is ``pod``, or what a test gives as the fixture's parameter.
    """
    provider: str = getattr(request, "param", "pod")
    if provider == "agent-sandbox":
        request.getfixturevalue("sandbox_crds")
    install_crd(api)
    namespace = make_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
    grant(api, namespace, provider)
    token = control_plane.service_account_token(namespace, ACCOUNT)
    kubeconfig = connection.write_kubeconfig(tmp_path / "kubeconfig", token=token)
    return Sites(api, kubeconfig, namespace, tmp_path, provider)
