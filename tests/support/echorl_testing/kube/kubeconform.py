"""kubeconform, with schemas from the Go modules of our test cluster: nothing comes from a network at test time.

The API's schemas are those of the Kubernetes version that the test cluster runs, from the files of its module. So the
charts are held against them without a cluster; what only an API server knows is left to tests/cluster.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from echorl_testing.cluster.binaries import KUBERNETES, Binaries
from echorl_testing.cluster.go_sources import module_files
from echorl_testing.kube.kubernetes_schemas import LOCATION, write_schemas

_MONITORING = KUBERNETES.parent / "prometheus-operator"
_CRDS = [f"monitoring.coreos.com_{plural}" for plural in ("podmonitors", "prometheusrules", "servicemonitors")]
_TIMEOUT_S = 60.0


class Kubeconform:
    """The program, and a folder with schemas."""

    def __init__(self, folder: Path) -> None:
        """``folder`` gets the schemas.

        Raises:
            Unavailable: there is no Go.
            ClusterError: program or schemas cannot be had.
        """
        self._program, self._schemas = Binaries().path("kubeconform"), folder
        kubernetes = module_files(KUBERNETES.folder, "k8s.io/kubernetes")
        operator = module_files(_MONITORING, "github.com/prometheus-operator/prometheus-operator")
        files = [operator / "example" / "prometheus-operator-crd" / f"{name}.yaml" for name in _CRDS]
        crds = [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files]
        write_schemas(folder, kubernetes / "api" / "openapi-spec" / "swagger.json", crds)

    def problems(self, objects: list[dict[str, Any]]) -> list[str]:
        """What is wrong with objects, each as ``Kind/name: ...``; a kind without a schema is wrong too."""
        command = [str(self._program), "-strict", "-output", "json", "-verbose", "-schema-location"]
        done = subprocess.run(
            [*command, str(self._schemas / LOCATION)],
            input=yaml.safe_dump_all(objects),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode not in (0, 1) or not done.stdout:
            raise AssertionError(f"kubeconform ended with {done.returncode}: {done.stderr}")
        found = json.loads(done.stdout)["resources"] or []
        assert len(found) == len(objects), f"{len(found)} of {len(objects)} objects were looked at"
        return [f"{one['kind']}/{one['name']}: {one['msg']}" for one in found if one["status"] != "statusValid"]
