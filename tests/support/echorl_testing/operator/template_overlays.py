"""A pod template, and where the overlay that is merged into it stands."""

from typing import Any

PATH = "spec.trainer.template"
BASE: dict[str, Any] = {
    "metadata": {"labels": {"echorl.dev/role": "trainer"}},
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "ours",
                "command": ["python"],
                "env": [{"name": "HOME", "value": "/home"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {}}}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"}],
                "livenessProbe": {"httpGet": {"path": "/healthz"}, "periodSeconds": 10},
                "resources": {"requests": {"cpu": "1"}},
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "restartPolicy": "Always",
    },
}
