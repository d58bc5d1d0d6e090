"""The run's name, resume, checkpoints, code, storage and monitors."""

from echorl_testing.manifests.refused.case import Refused

RUNTIME: list[Refused] = [
    Refused([("metadata.name", "a" * 41)], "metadata.name", "at most 40", id="long name"),
    Refused([("metadata.name", "7b-grpo")], "metadata.name", "with a letter first", id="name of no Service"),
    Refused([("metadata.name", "a.b")], "metadata.name", "with a letter first", id="dotted name"),
    Refused([("spec.resume", {"policy": "FromStep"})], "spec.resume.step", "step of a", id="FromStep without step"),
    Refused([("spec.resume", {"step": 3})], "spec.resume.step", "no value", id="step without FromStep"),
    Refused([("spec.resume", {"onExisting": "Archive"})], "spec.resume.onExisting", "Refuse", id="Archive, not Never"),
    Refused([("spec.checkpoint.keepEvery", 30)], "spec.checkpoint.keepEvery", "interval (25)", id="keepEvery"),
    Refused(
        [("spec.trainer.replicas", 1), ("spec.checkpoint.memory", {"limit": "1Gi", "mirror": True})],
        "spec.checkpoint.memory.mirror",
        "trainer.replicas from 2",
        id="copies at a neighbour that there is none of",
    ),
    Refused(
        [("spec.checkpoint", {"weightsOnlyKeepLast": 2})],
        "spec.checkpoint.weightsOnlyKeepLast",
        "5",
        id="how many exports stay where there are none",
    ),
    Refused(
        [("spec.trainer.optimizer", {"type": "sgd", "stateDtype": "int8"})],
        "spec.trainer.optimizer.stateDtype",
        "float32",
        id="precision of moments that there are none of",
    ),
    Refused(
        [("spec.trainer.optimizer", {"type": "signSgd", "cpuOffload": True})],
        "spec.trainer.optimizer.cpuOffload",
        "false",
        id="host memory for moments that there are none of",
    ),
    Refused([("spec.storage.claimName", "c")], "spec.storage.size", "no value", id="size of a claim that exists"),
    Refused(
        [("spec.sandboxes", {"provider": "process", "warmReplicas": 2})],
        "spec.sandboxes.warmReplicas",
        "0",
        id="warm pods of sandboxes that are none",
    ),
    Refused(
        [("spec.storage.accessMode", "ReadWriteOnce")],
        "spec.storage.accessMode",
        "ReadWriteMany",
        id="one node, 2 replicas",
    ),
    Refused(
        [("spec.code.configMap", "c")], "spec.code.path", "exactly one of configMap and path", id="both kinds of code"
    ),
    Refused(
        [("spec.storage.claimName", "c"), ("spec.storage.size", None)],
        "spec.storage.storageClassName",
        "no value",
        id="class of a claim that exists",
    ),
    *(
        Refused(
            [("spec.sandboxes", {"resources": {key: "much"}})],
            f"spec.sandboxes.resources.{key}",
            "a Kubernetes quantity above 0",
            id=f"{key} of sandboxes",
        )
        for key in ("memory", "disk")
    ),
    Refused([("spec.sandboxes", {"ttl": "soon"})], "spec.sandboxes.ttl", "a duration", id="ttl of sandboxes"),
    Refused(
        [("spec.monitors.wandb", {"secretName": "key"})],
        "spec.monitors.wandb.secretName",
        "no value",
        id="a W&B key without a project",
    ),
    Refused(
        [("spec.monitors.wandb", {"mode": "offline"})],
        "spec.monitors.wandb.mode",
        "online",
        id="W&B offline without a project",
    ),
    Refused(
        [("spec.monitors.wandb.baseUrl", "https://me:secret@wandb.example.com")],
        "spec.monitors.wandb.baseUrl",
        "without a password",
        id="W&B's address with a password",
    ),
]
