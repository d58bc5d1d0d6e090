"""``make cluster-up`` and ``make cluster-down``: a cluster for development; ``make test-programs``: what tests take."""

import argparse
import shutil
import sys
import time
from pathlib import Path

from echorl_testing.cluster import built_images, credentials, image_loading, instances, sandbox
from echorl_testing.cluster import cluster as clusters
from echorl_testing.cluster.binaries import MODULES, Binaries
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.errors import ClusterError, Unavailable
from echorl_testing.cluster.preparation import prepare

_REPOSITORY = Path(__file__).resolve().parents[4]
_UNAVAILABLE = 2
_INSTANCE = "instance"
_MOST_NODES = 5000


def main() -> int:
    """Exit code 0; 1 when the cluster failed; 2 when this machine cannot hold one."""
    options = _parser().parse_args()
    try:
        options.run(options)
    except Unavailable as error:
        _say(f"cluster: {error}", error=True)
        return _UNAVAILABLE
    except (ClusterError, OSError) as error:
        _say(f"cluster: {error}", error=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m echorl_testing.cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, default=_REPOSITORY / ".cluster", help="what the cluster leaves for you")
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start it, or start what has ended of it")
    up.add_argument("--kwok", type=_count, default=0, metavar="N", help="fake nodes with 8 nvidia.com/gpu each")
    up.add_argument("--helm", action="store_true", help="leave helm beside kubectl; built when it is first asked for")
    up.add_argument("--no-node", action="store_true", help="control plane and fake nodes only: no real pods")
    up.set_defaults(run=_up)
    load = commands.add_parser("load", help="import images that `make images` built into the cluster's real node")
    load.add_argument(
        "images", nargs="*", metavar="IMAGE", help=f"of {', '.join(built_images.NAMES)}; default: all built"
    )
    load.set_defaults(run=_load)
    commands.add_parser("down", help="end it and leave nothing").set_defaults(run=_down)
    build = commands.add_parser("build", help="build programs into the cache and say where they are")
    build.add_argument("programs", nargs="*", metavar="PROGRAM", help="all but helm if none is named")
    build.set_defaults(run=_build)
    take = commands.add_parser("prepare", help="build and install all that tests take, as root")
    take.set_defaults(run=_prepare)
    return parser


def _up(options: argparse.Namespace) -> None:
    began = time.monotonic()
    sandbox.check_possible()
    binaries = Binaries(say=_say)
    folder: Path = options.folder
    cluster = _existing(folder, binaries)
    if cluster is None:
        cluster = clusters.start(tethered=False, binaries=binaries)
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / _INSTANCE).write_text(f"{cluster.layout.number} {cluster.sandbox.init.to_json()}\n")
    else:
        cluster.ensure_control_plane()
    _leave_files(cluster, folder, ["kubectl", *(["helm"] if options.helm else [])])
    if not options.no_node:
        cluster.node.ensure()
    wanted = cluster.add_fake_nodes(gpu=options.kwok)
    cluster.remove_nodes(set(cluster.fake_node_names()) - set(wanted))
    _say(f"cluster {cluster.layout.number} is up after {time.monotonic() - began:.1f} s: {cluster.layout.server}")
    _say(f"export KUBECONFIG={folder / 'kubeconfig'} KUBECACHEDIR={folder / 'cache'} PATH={folder / 'bin'}:$PATH")


def _leave_files(cluster: Cluster, folder: Path, programs: list[str]) -> None:
    kubeconfig = cluster.connection.kubeconfig.read_text()
    credentials.write_secret(folder / "kubeconfig", kubeconfig)
    (folder / "bin").mkdir(exist_ok=True)
    for program in programs:
        link = folder / "bin" / program
        link.unlink(missing_ok=True)
        link.symlink_to(cluster.binaries.path(program))


def _down(options: argparse.Namespace) -> None:
    sandbox.check_root()
    cluster = _existing(options.folder, Binaries(say=_say))
    if cluster is not None:
        cluster.stop()
        _say(f"cluster {cluster.layout.number} is gone")
    instances.sweep()
    shutil.rmtree(options.folder, ignore_errors=True)


def _load(options: argparse.Namespace) -> None:
    sandbox.check_root()
    cluster = _existing(options.folder, Binaries(say=_say))
    if cluster is None:
        raise ClusterError("there is no cluster to load images into (make cluster-up)")
    for name in options.images or built_images.built():
        began = time.monotonic()
        image_loading.load(cluster.node, [name])
        _say(f"{built_images.tag(name)} is on the node after {time.monotonic() - began:.1f} s")


def _build(options: argparse.Namespace) -> None:
    binaries = Binaries(say=_say)
    everything = [next(iter(module.packages)) for module in MODULES if module.name != "helm"]
    for program in options.programs or everything:
        _say(str(binaries.path(program)))


def _prepare(_: argparse.Namespace) -> None:
    try:
        prepare(Binaries(say=_say))
    except Unavailable as error:
        _say(f"tests on a cluster will be skipped: {error}")


def _existing(folder: Path, binaries: Binaries) -> Cluster | None:
    try:
        number, _, init = (folder / _INSTANCE).read_text().strip().partition(" ")
        cluster = clusters.find(int(number), binaries=binaries)
    except (FileNotFoundError, ValueError):
        return None
    # After a restart of the machine the number may be another cluster's.
    return cluster if cluster is not None and cluster.sandbox.init.to_json() == init else None


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > _MOST_NODES:
        raise argparse.ArgumentTypeError(f"found {text!r}, accepted 0 to {_MOST_NODES}")
    return int(text)


def _say(line: str, *, error: bool = False) -> None:
    (sys.stderr if error else sys.stdout).write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
