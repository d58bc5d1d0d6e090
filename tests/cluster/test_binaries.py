"""Programs of a cluster: built once for a content, by whoever comes first, and rebuilt when the content changes."""

import json
import os
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.cluster import go_builds, sandbox
from echorl_testing.cluster.binaries import MODULES, Binaries, Module, go
from echorl_testing.cluster.errors import ClusterError, Unavailable
from echorl_testing.cluster.images import Image, archive
from echorl_testing.cluster.layout import NUMBERS, Layout
from echorl_testing.cluster.sandbox import run

SOURCE = 'package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString("%s") }\n'


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    try:
        compiled = run([str(go()), "env", "GOCACHE"])
    except Unavailable as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # What Go has compiled of its own library stays known.
    monkeypatch.setenv("GOCACHE", compiled.strip())
    folder = tmp_path / "modules" / "greeter"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module greeter\n\ngo 1.26.0\n")
    (folder / "main.go").write_text(SOURCE % "hello")
    return Module("greeter", {"greeter": "."}, ("alias",), parent=folder.parent)


def cached(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "echorl").iterdir() if path.is_dir()]


def test_several_at_once_build_once(module: Module, tmp_path: Path) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(lambda _: Binaries([module], said.append).path("alias"), range(3)))
    (path,) = paths
    assert run([str(path)]) == "hello"
    # A build that takes long says how far it is, too.
    assert len([line for line in said if ", once: " in line]) == len(cached(tmp_path)) == 1


def test_changed_sources_are_built_anew(module: Module, tmp_path: Path) -> None:
    before = Binaries([module], print).path("greeter")
    (module.folder / "main.go").write_text(SOURCE % "good day")
    after = Binaries([module], print).path("greeter")
    assert (run([str(before)]), run([str(after)])) == ("hello", "good day")


def test_a_failed_build_shows_what_the_compiler_said_and_leaves_nothing(module: Module, tmp_path: Path) -> None:
    (module.folder / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    with pytest.raises(ClusterError, match="undefined: undefined"):
        Binaries([module], print).path("greeter")
    assert cached(tmp_path) == []


def test_a_build_tells_what_it_costs_and_how_far_it_is(module: Module, tmp_path: Path) -> None:
    said: list[str] = []
    to = tmp_path / "programs"
    to.mkdir()
    go_builds.build(go(), module.folder, module.packages, flags="", to=to, say=said.append, say_every_s=0.01)
    assert run([str(to / "greeter")]) == "hello"
    assert any(re.fullmatch(r"building greeter: \d+ of at most \d\d+ packages after 0\.0 min", one) for one in said)
    told: list[str] = []
    Binaries([module], told.append).path("greeter")
    assert re.match(r"building greeter \(greeter\), once: .*; \d+ GiB of disk are free; to ", told[0])


@campaign.ALL
def test_what_go_compiled_is_not_kept_where_that_is_asked_for(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    compiled = tmp_path / "go-cache"
    monkeypatch.setenv("GOCACHE", str(compiled))
    monkeypatch.setenv(go_builds.ENV_DROP_CACHE, "1")
    path = Binaries([module], print).path("greeter")
    assert run([str(path)]) == "hello"
    assert not compiled.exists()
    assert not list(tmp_path.glob("echorl-go-*"))


def test_without_go_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO", "/nowhere/go")
    with pytest.raises(Unavailable, match=r"none at /nowhere/go.*set GO"):
        Binaries().path("kube-apiserver")


def test_without_root_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"needs root.*user 1000"):
        sandbox.check_possible()


def test_an_unknown_program_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"no program 'kubeadm'; there are: .*kubectl, kubelet"):
        Binaries().path("kubeadm")


def test_every_module_is_pinned() -> None:
    for module in MODULES:
        if "require" in (module.folder / "go.mod").read_text():
            assert (module.folder / "go.sum").stat().st_size > 0
        assert "replace" not in (module.folder / "go.mod").read_text() or module.name == "kubernetes"


def test_no_two_clusters_share_an_address() -> None:
    networks = [
        ip_network(network)
        for layout in map(Layout, NUMBERS)
        for network in (layout.node_network, layout.pod_network, layout.service_network)
    ]
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))
    for layout in map(Layout, NUMBERS):
        real, fake = ip_network(layout.real_pod_network), ip_network(layout.fake_pod_network, strict=False)
        assert not real.overlaps(fake)
        assert real.subnet_of(ip_network(layout.pod_network))
        assert fake.subnet_of(ip_network(layout.pod_network))
    with pytest.raises(ValueError, match="found 64, accepted 0 to 63"):
        Layout(64)


def test_an_image_holds_what_it_was_given(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    image = Image(
        "echorl.test/x:1",
        files={"bin/x": program},
        texts={"etc/motd": "hi"},
        links={"bin/y": "x"},
        folders=["tmp"],
        command=["/bin/x"],
        user=7,
    )
    assert archive(image) == archive(image)
    with tarfile.open(fileobj=BytesIO(archive(image))) as outer:
        (manifest,) = json.load(outer.extractfile("manifest.json"))
        config = json.load(outer.extractfile(manifest["Config"]))
        layer = BytesIO(outer.extractfile(manifest["Layers"][0]).read())
    assert manifest["RepoTags"] == ["echorl.test/x:1"]
    assert (config["config"]["Cmd"], config["config"]["User"]) == (["/bin/x"], "7:7")
    with tarfile.open(fileobj=layer) as inner:
        assert inner.getnames() == ["bin", "etc", "tmp", "bin/x", "etc/motd", "bin/y"]
        modes = {name: inner.getmember(name).mode for name in ("bin", "tmp", "bin/x", "etc/motd")}
        assert modes == {"bin": 0o755, "tmp": 0o1777, "bin/x": 0o755, "etc/motd": 0o644}
        assert inner.getmember("bin/y").linkname == "x"
