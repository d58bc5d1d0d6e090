"""Environments of one agent: names and types, ECHO, curricula, sampling."""

from echorl_testing.manifests.refused.case import ENV, Refused

IMAGE = "openenv:registry.example.org/games/wordle:1"

ENVIRONMENTS: list[Refused] = [
    Refused([("spec.environments.train", [])], "spec.environments.train", "at least one", id="no train environment"),
    Refused(
        [(f"{ENV}.name", "own")],
        "spec.environments.train[1].name",
        "of its own",
        id="duplicate train name",
        server_path="spec.environments.train[1]",
        server_says="own",
    ),
    Refused([(f"{ENV}.name", "all")], "spec.environments.train[0].name", "other name", id="reserved name"),
    Refused(
        [("spec.environments.eval.0.name", "terminal")],
        "spec.environments.eval[0].name",
        "of its own",
        id="eval as train",
        server_path="spec.environments.eval",
    ),
    Refused(
        [(f"{ENV}.type", "builtin:terminl")],
        "spec.environments.train[0].type",
        "builtin:kuhn, builtin:messages, builtin:swe, builtin:terminal",
        id="unknown built-in",
    ),
    *(
        Refused(
            [(f"spec.environments.{kind}.0.server", {})],
            f"spec.environments.{kind}[0].server",
            "no server block",
            id=f"server of no image: {kind}",
            server_says="only for openenv:<registry>/<image>",
        )
        for kind in ("train", "eval")
    ),
    *(
        Refused(
            [(f"spec.environments.{kind}.0", {"name": "y" * 19, "type": IMAGE})],
            f"spec.environments.{kind}[0].name",
            "a name of at most 18 characters",
            id=f"name of a server: {kind}",
            server_says="its server is called",
        )
        for kind in ("train", "eval")
    ),
    *(
        Refused(
            [(f"spec.environments.{kind}.0", {"name": name, "type": IMAGE})],
            f"spec.environments.{kind}[0].name",
            "a name without env- in it that does not end in trainer, inference or orchestrator",
            id=f"name of a server that another run may have: {kind} {name}",
            server_says="so may be a Service of another run",
        )
        for kind in ("train", "eval")
        for name in ("x-trainer", "inference", "my-env-x")
    ),
    *(
        Refused(
            [(f"spec.environments.{kind}.0", {"name": "y", "type": IMAGE, "server": {"memory": "0Gi"}})],
            f"spec.environments.{kind}[0].server.memory",
            "a Kubernetes quantity above 0",
            id=f"memory of a server: {kind}",
        )
        for kind in ("train", "eval")
    ),
    Refused(
        [(f"{ENV}.type", "openenv:games:8000")],
        "spec.environments.train[0].type",
        "openenv:http://<host>:<port>, openenv:<registry>/<image>",
        id="neither an address nor an image",
    ),
    Refused(
        [(f"{ENV}.echo", {})],
        "spec.environments.train[0].echo",
        "at least one of system, user",
        id="empty echo block",
    ),
    Refused(
        [("spec.model.renderer", "engine")],
        "spec.environments.train[0].echo",
        "no echo",
        id="echo, engine renders",
        server_path="spec.environments.train",
    ),
    Refused(
        [(f"{ENV}.sampling.temperature", 0)], "spec.environments.train[0].sampling.temperature", "above 0", id="greedy"
    ),
    Refused([(f"{ENV}.sampling.topP", 0.9)], "spec.environments.train[0].sampling.topP", "eval", id="topP"),
    Refused([(f"{ENV}.sampling.topK", 5)], "spec.environments.train[0].sampling.topK", "eval", id="topK"),
    Refused(
        [(f"{ENV}.sampling.presencePenalty", 0.5)],
        "spec.environments.train[0].sampling.presencePenalty",
        "eval",
        id="penalty",
    ),
    Refused(
        [(f"{ENV}.curriculum", {"easyFrom": 0.25, "hardTo": 0.5})],
        "spec.environments.train[0].curriculum.hardTo",
        "a number below easyFrom (0.25)",
        id="a curriculum's bounds the wrong way round",
    ),
    Refused(
        [("spec.algorithm.mode", "sft")],
        "spec.environments.train[0].echo",
        "no echo block",
        id="echo in mode sft",
        server_path="spec.environments.train",
    ),
    Refused(
        [("spec.algorithm.mode", "opd")],
        "spec.environments.train[0].echo",
        "no echo block",
        id="echo in mode opd",
        server_path="spec.environments.train",
    ),
    Refused(
        [("spec.algorithm.loss", {"type": "custom", "import": "a:b"})],
        "spec.environments.train[0].echo",
        "no echo block",
        id="echo, custom loss",
        server_path="spec.environments.train",
    ),
]
