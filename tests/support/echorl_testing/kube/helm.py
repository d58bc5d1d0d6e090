"""Helm, and the charts of this repository."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from echorl_testing.cluster.binaries import Binaries

CHARTS = Path(__file__).resolve().parents[4] / "charts"
CHART, CRDS = CHARTS / "echorl", CHARTS / "echorl-crds"
KUBERNETES = "1.36.3"
"""Version that templates are rendered for without a cluster."""
_TIMEOUT_S = 240.0


class HelmError(Exception):
    """Helm failed; with what it said."""


class Helm:
    """Helm with folders of its own."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        """``kubeconfig``: of the cluster to work on; None: for what needs none."""
        self._program = Binaries().path("helm")
        self._environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "KUBECONFIG": str(kubeconfig or folder / "none"),
        }

    def __call__(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Run a command, with values; its output.

        Raises:
            HelmError: it failed.
        """
        more = [] if values is None else ["--values", "-"]
        done = subprocess.run(
            [self._program, *arguments, *more],
            input=None if values is None else yaml.safe_dump(dict(values)),
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise HelmError(f"exit code {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def template(
        self, values: Mapping[str, Any] | None = None, *, chart: Path = CHART, namespace: str = "echorl-system"
    ) -> str:
        """What a chart renders to, without a cluster. Raises as a call."""
        return self(
            "template", "echorl", chart, "--namespace", namespace, "--kube-version", KUBERNETES, values=values or {}
        )


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered chart."""
    return [one for one in yaml.safe_load_all(text) if one]
