"""All that tests on a cluster, of sandboxes and in a browser take, built and installed before the first of them."""

from echorl_testing.cluster import packages, sandbox
from echorl_testing.cluster.binaries import MODULES, Binaries


def prepare(binaries: Binaries) -> None:
    """Build programs and install packages that are missing: minutes once, then nothing.

    Raises:
        Unavailable: this machine cannot hold a cluster.
        ClusterError: a build failed.
    """
    sandbox.check_root()
    packages.ensure_sandboxes()
    packages.ensure_browser()
    sandbox.check_possible()
    packages.ensure_node()
    packages.ensure_prometheus()
    for module in MODULES:
        binaries.path(next(iter(module.packages)))
