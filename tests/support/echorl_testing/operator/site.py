"""EchoRL as people have it: charts installed by Helm, images that ``make images`` built, a namespace for runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml

from echorl_testing.cluster.cluster import Cluster
from echorl_testing.kube.helm import CHART, CRDS
from echorl_testing.operator.real_run import RealRun

REPOSITORY = Path(__file__).resolve().parents[4]
SYSTEM, OPERATOR = "echorl-system", "echorl-operator"
USER = 10001
"""Of all our pods."""
_TIMEOUT_S = 700.0


class CommandFailed(Exception):
    """A command of the transcript ended with another code than 0; with what it said."""


class Transcript:
    """Runs commands as people type them, and writes down each with its time and what it printed."""

    def __init__(self, file: TextIO, cluster: Cluster, home: Path) -> None:
        self._file, self._began = file, time.monotonic()
        self._programs = {name: [str(cluster.binaries.path(name))] for name in ("kubectl", "helm")}
        self._programs["echorl"] = [sys.executable, "-m", "echorl_cli"]
        kubeconfig = str(cluster.connection.kubeconfig)
        self._environ = {**os.environ, "KUBECONFIG": kubeconfig, "HOME": str(home), "COLUMNS": "160"}

    def run(self, program: str, *arguments: str | Path, stdin: str | None = None) -> str:
        """What a command prints. ``program``: kubectl, helm or echorl.

        Raises:
            CommandFailed: its exit code is not 0.
        """
        words = [str(one) for one in arguments]
        done = subprocess.run(
            [*self._programs[program], *words],
            input=stdin,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        self.say(f"$ {program} {' '.join(words)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            raise CommandFailed(f"{program} {' '.join(words)}: exit code {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def say(self, text: str) -> None:
        """Write something down, with the seconds since the beginning."""
        self._file.write(f"[{time.monotonic() - self._began:7.1f} s] {text.rstrip()}\n")
        self._file.flush()


class Site:
    """An installation, and the namespace where its runs are."""

    def __init__(self, cluster: Cluster, transcript: Transcript, namespace: str) -> None:
        self.cluster, self.transcript, self.namespace = cluster, transcript, namespace
        self._values: dict[str, Any] = {"watch": {"namespaces": [namespace]}}

    def install(self, values: Mapping[str, Any]) -> float:
        """Install both charts; seconds from the operator's chart until the operator is ready."""
        self.transcript.run("helm", "install", "echorl-crds", CRDS, "--namespace", "default", "--wait")
        began = time.monotonic()
        self._release("install", values, "--create-namespace")
        return time.monotonic() - began

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Change values; returns when the new operator works."""
        self._release("upgrade", values)

    def _release(self, verb: str, values: Mapping[str, Any], *more: str) -> None:
        self._values |= values
        where = ("--namespace", SYSTEM)
        self.transcript.run(
            "helm", verb, "echorl", CHART, *where, *more, "--values", "-", "--wait", stdin=yaml.safe_dump(self._values)
        )
        self.transcript.run("kubectl", *where, "rollout", "status", f"deployment/{OPERATOR}", "--timeout=120s")

    def uninstall(self) -> None:
        """Both charts; the CRD stays."""
        self.transcript.run("helm", "uninstall", "echorl", "--namespace", SYSTEM, "--wait", "--ignore-not-found")
        self.transcript.run("helm", "uninstall", "echorl-crds", "--namespace", "default", "--ignore-not-found")

    def operators(self) -> dict[str, dict[str, Any]]:
        """The operator's pods, by name."""
        found = self.cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
        ours = [one for one in found if one["metadata"]["labels"].get("app.kubernetes.io/component") == "operator"]
        return {one["metadata"]["name"]: one for one in ours}

    def leader(self) -> str:
        """Name of the operator's pod that works."""
        lease = self.cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}")
        holder = str(lease["spec"]["holderIdentity"])
        return next(name for name in self.operators() if holder.startswith(name))

    def apply(self, document: Path | Mapping[str, Any]) -> RealRun:
        """``kubectl apply`` a run; its clock starts."""
        if isinstance(document, Path):
            name, source, text = yaml.safe_load(document.read_text())["metadata"]["name"], str(document), None
        else:
            name, source, text = document["metadata"]["name"], "-", json.dumps(document)
        run = RealRun(self.cluster, self.namespace, name, lambda: None, self.transcript.say)
        self.transcript.run("kubectl", "--namespace", self.namespace, "apply", "--filename", source, stdin=text)
        return run

    def delete_pod(self, namespace: str, name: str) -> None:
        """At once, without waiting for its end."""
        self.transcript.run("kubectl", "--namespace", namespace, "delete", "pod", name, "--wait=false")

    def tell(self, run: RealRun) -> None:
        """Write down what people see of a run."""
        where = ("--namespace", self.namespace)
        self.transcript.run("kubectl", *where, "get", "erl", run.name)
        self.transcript.run("echorl", "status", run.name, *where)
        self.transcript.run("echorl", "why", run.name, *where)


def own(folder: Path) -> None:
    """Give a folder of the node to the pods' user: ``fsGroup`` does nothing there."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)


@contextmanager
def site(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Site]:
    """Nothing is installed yet; everything is uninstalled in the end. ``folder``: for ``transcript.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "transcript.txt").open("w") as file:
        made = Site(cluster, Transcript(file, cluster, folder), namespace)
        try:
            yield made
        finally:
            made.uninstall()
