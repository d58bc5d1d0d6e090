"""Programs of a cluster and its pods, built from the Go module proxy and cached outside the tree by content."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from echorl_testing.cluster import go_builds
from echorl_testing.cluster.errors import ClusterError, Unavailable

_REPOSITORY = Path(__file__).resolve().parents[4]
_MODULES = _REPOSITORY / "tests" / "cluster" / "binaries"
_KUBERNETES_VERSION = "v1.36.3"
_COSTS = {"kubernetes": "40 min on 2 busy cores, 6 GiB of disk for what Go downloads and compiles"}
_LITTLE = "some minutes, up to 1 GiB of disk"
"""What builds take; none of it is part of a build's content."""
_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """A Go module of ours: what is built from it."""

    name: str
    packages: Mapping[str, str]
    """Package by the name of its program."""
    links: tuple[str, ...] = ()
    """More names of the first program."""
    linker_flags: str = ""
    parent: Path = field(default=_MODULES, repr=False)

    @property
    def folder(self) -> Path:
        """With go.mod, go.sum and sources."""
        return self.parent / self.name


KUBERNETES = Module(
    "kubernetes",
    {"kubernetes": ".", "pause": "./pause"},
    (
        "credentials",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
        "kubectl",
        "kubelet",
    ),
    " ".join(
        f"-X {_VERSION}.{name}={value}"
        for name, value in (
            ("gitVersion", _KUBERNETES_VERSION),
            ("gitMajor", _KUBERNETES_VERSION.lstrip("v").split(".")[0]),
            ("gitMinor", _KUBERNETES_VERSION.split(".")[1]),
            ("gitTreeState", "clean"),
        )
    ),
)
KWOK = Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, (), "-X sigs.k8s.io/kwok/pkg/consts.Version=v0.7.0")
COREDNS = Module("coredns", {"coredns": "."})
HELM = Module("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}, (), "-X helm.sh/helm/v3/internal/version.version=v3.22.0")
KUBECONFORM = Module(
    "kubeconform", {"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"}, (), "-X main.version=v0.8.0"
)
SANDBOX_DAEMON = Module("sandbox-daemon", {"sandbox-daemon": "."}, parent=_REPOSITORY / "images")
"""What runs in pods of sandboxes: of the standard library alone."""
MODULES = (KUBERNETES, KWOK, COREDNS, HELM, KUBECONFORM, SANDBOX_DAEMON)


@dataclass
class Binaries:
    """Paths of programs; each module is built when one of its programs is first asked for."""

    modules: Sequence[Module] = MODULES
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: T201
    """Told before a build, which takes minutes."""
    _folders: dict[str, Path] = field(default_factory=dict)

    @property
    def programs(self) -> list[str]:
        """Names of all programs."""
        return sorted(name for module in self.modules for name in (*module.packages, *module.links))

    def path(self, program: str) -> Path:
        """Where a program is.

        Raises:
            Unavailable: it is not in the cache, and there is no Go to build it.
            ClusterError: the build failed; with the end of what the compiler said.
            KeyError: no module has such a program.
        """
        module = next((m for m in self.modules if program in (*m.packages, *m.links)), None)
        if module is None:
            raise KeyError(f"no program {program!r}; there are: {', '.join(self.programs)}")
        if module.name not in self._folders:
            self._folders[module.name] = _built(module, self.say)
        return self._folders[module.name] / program


def go() -> Path:
    """The Go tool: ``$GO``, on the path, or where its archive is unpacked by convention.

    Raises:
        Unavailable: there is none.
    """
    found = os.environ.get("GO") or shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(found).exists():
        raise Unavailable(f"a test cluster is built with Go 1.26 or newer: none at {found}, and none on PATH (set GO)")
    return Path(found)


def cache() -> Path:
    """Folder of all builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echorl"


def key(module: Module, go_version: str) -> str:
    """Hash of all that a build depends on."""
    content = hashlib.sha256(f"{go_version}\n{module}\n".encode())
    for file in sorted(module.folder.rglob("*")):
        if file.suffix in (".go", ".mod", ".sum"):
            data = file.read_bytes()
            content.update(f"{file.relative_to(module.folder)} {len(data)}\n".encode() + data)
    return content.hexdigest()


def _built(module: Module, say: Callable[[str], None]) -> Path:
    tool = go()
    version = subprocess.run(
        [tool, "version"], capture_output=True, text=True, check=True, timeout=30, cwd=module.folder
    ).stdout.strip()
    folder = cache() / key(module, version)[:32]
    if folder.exists():
        return folder
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(cache() / f"{module.name}.lock"):
        if not folder.exists():
            cost = (
                f"{_COSTS.get(module.name, _LITTLE)}, of which {go_builds.ENV_DROP_CACHE}=1 keeps the downloads alone"
            )
            say(f"building {module.name} ({', '.join(module.packages)}), once: {cost}; {go_builds.disk()}; to {folder}")
            _build(module, tool, folder, say)
    return folder


def _build(module: Module, tool: Path, folder: Path, say: Callable[[str], None]) -> None:
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        go_builds.build(tool, module.folder, module.packages, flags=module.linker_flags, to=unfinished, say=say)
        for link in module.links:
            (unfinished / link).symlink_to(next(iter(module.packages)))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        deadline = time.monotonic() + go_builds.DEADLINE_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"{path} has been locked by another build for {go_builds.DEADLINE_S:g} s"
                    raise ClusterError(message) from None
                time.sleep(0.5)
        yield
