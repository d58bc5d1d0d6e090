"""Manifests for rules of the CRD that stand at many places: each place has one that breaks its rule there.

As ``refused_manifests.BROKEN_RULES``. ``says`` is where the server's message differs from those of other rules there.
"""

from typing import Any

from echorl_testing.manifests.refused import ENV, OPD, Refused, indexed

EVAL = "spec.environments.eval.0"
OWN = f"{ENV}.algorithm"
"""What an environment has of its own."""
IMPORT_PATH = "an import path such as"
OBJECT_NAME = "the name of a Kubernetes object"
DURATION = "a duration such as 30s"
_ONLY_CUSTOM = "only for type custom"
_ONLY_ENDPOINT = "only for policy endpoint"


def _refused(path: str, value: Any, accepted: str, *, at: str = "", says: str = "", **more: Any) -> Refused:
    """``value`` at ``path`` is wrong, and what is told stands at ``at`` below it."""
    told = indexed(f"{path}.{at}" if at else path)
    changes = [*more.pop("first", ()), (path, value)]
    return Refused(changes, told, accepted, id=f"{told}: {says or accepted}", server_says=says, **more)


def _eval_member(key: str, member: dict[str, Any], accepted: str, says: str = "") -> Refused:
    talks = {"name": "talks", "type": "import:talks:make", "members": {"judge": member}}
    return Refused(
        [("spec.environments.eval", [talks])],
        f"spec.environments.eval[0].members.judge.{key}",
        accepted,
        id=f"eval member {key}: {says or accepted}",
        server_path=f"spec.environments.eval[0].members[judge].{key}",
        server_says=says,
    )


def _train_member(key: str, member: dict[str, Any], accepted: str, says: str = "") -> Refused:
    return Refused(
        [(f"{ENV}.members", {"judge": member})],
        f"spec.environments.train[0].members.judge.{key}",
        accepted,
        id=f"train member {key}: {says or accepted}",
        server_path=f"spec.environments.train[0].members[judge].{key}",
        server_says=says,
    )


def _based(kind: str, why: str, *first: tuple[str, Any]) -> Refused:
    """A member that is the base model, in an environment that may have members."""
    talks = {"name": "talks", "type": "import:talks:make", "members": {"judge": {"policy": "base"}}}
    return Refused(
        [*first, (f"spec.environments.{kind}.0", talks)],
        f"spec.environments.{kind}[0].members.judge.policy",
        "learner or endpoint",
        id=f"base in {kind}: {why}",
        server_path=f"spec.environments.{kind}",
        server_says=why,
    )


_ENDPOINT = {"policy": "endpoint", "url": "http://judge", "model": "m"}
_TURNS = {"by": "turns"}
_MEMBERS = [
    _train_member("url", {"url": "http://judge"}, "no value", _ONLY_ENDPOINT),
    _train_member("model", {"model": "m"}, "no value", _ONLY_ENDPOINT),
    _train_member("secretName", {**_ENDPOINT, "secretName": "A_b"}, OBJECT_NAME),
    _eval_member("url", {"url": "http://judge"}, "no value", _ONLY_ENDPOINT),
    _eval_member("model", {"model": "m"}, "no value", _ONLY_ENDPOINT),
    _eval_member("secretName", {"secretName": "key"}, "no value", _ONLY_ENDPOINT),
    _eval_member("url", {"policy": "endpoint", "model": "m"}, "http:// or https://", "needed by policy endpoint"),
    _eval_member("url", {**_ENDPOINT, "url": "judge:80"}, "http:// or https://", 'found "judge:80"'),
    _eval_member("model", {"policy": "endpoint", "url": "http://judge"}, "the model's name"),
    _eval_member("secretName", {**_ENDPOINT, "secretName": "A_b"}, OBJECT_NAME),
    _refused(f"{EVAL}.members", {"judge": {"policy": "learner"}}, "no value", says="the environment has no members"),
    _based("train", "requests for chats go to the policy alone", ("spec.model.renderer", "engine")),
    _based("eval", "requests for chats go to the policy alone", ("spec.model.renderer", "engine")),
    _based("eval", "without model.lora"),
]
_OWN_ALGORITHM = [
    _refused(f"{OWN}.loss", {"type": "custom"}, IMPORT_PATH, at="import", says="found nothing"),
    _refused(f"{OWN}.loss", {"type": "grpo", "import": "a:b"}, "no value", at="import", says=_ONLY_CUSTOM),
    _refused(f"{OWN}.loss", {"type": "custom", "import": "b"}, IMPORT_PATH, at="import", says='found "b"'),
    _refused(f"{OWN}.loss", {"type": "grpo", "maskHigh": 0.2}, "no value", at="maskHigh"),
    _refused(f"{OWN}.loss", {"clipLow": 0.2}, "no value", at="clipLow"),
    _refused(f"{OWN}.loss", {"clipHigh": 0.2}, "no value", at="clipHigh"),
    _refused(f"{OWN}.loss", {"type": "custom", "import": "a:b", "klTau": 0.1}, "no value", at="klTau"),
    _refused(f"{OWN}.advantage", {"type": "custom"}, IMPORT_PATH, at="import", says="found nothing"),
    _refused(f"{OWN}.advantage", {"type": "none", "import": "a:b"}, "no value", at="import", says=_ONLY_CUSTOM),
    _refused(f"{OWN}.advantage", {"type": "custom", "import": "b"}, IMPORT_PATH, at="import", says='found "b"'),
    _refused(f"{OWN}.advantage", {"baselinePer": "member"}, "no value", at="baselinePer"),
    _refused(f"{OWN}.advantage", {"momentum": 0.9}, "no value", at="momentum"),
    _refused(f"{OWN}.advantage", {"order": "updateThenSubtract"}, "no value", at="order"),
    _refused(f"{OWN}.advantage", {"type": "maxRl", "lengthShaping": _TURNS}, "no value", at="lengthShaping"),
    _refused(
        f"{OWN}.advantage",
        {"lengthShaping": {"by": "turns", "completionWeight": 1.0}},
        "no value",
        at="lengthShaping.completionWeight",
    ),
    _refused(
        f"{OWN}.advantage",
        {"lengthShaping": {"by": "turns", "environmentWeight": 1.0}},
        "no value",
        at="lengthShaping.environmentWeight",
    ),
    _refused(
        f"{OWN}.advantage",
        {"lengthShaping": {"by": "tokens", "completionWeight": 0, "environmentWeight": 0}},
        "a number above 0",
        at="lengthShaping.completionWeight",
    ),
    _refused(f"{OWN}.filters", [{"type": "custom"}], IMPORT_PATH, at="0.import", says="found nothing"),
    _refused(f"{OWN}.filters", [{"type": "gibberish", "import": "a:b"}], "no value", at="0.import", says=_ONLY_CUSTOM),
    _refused(f"{OWN}.filters", [{"type": "custom", "import": "b"}], IMPORT_PATH, at="0.import", says='found "b"'),
    _refused(f"{OWN}.filters", [{"type": "zeroAdvantage", "easyFrom": 0.9}], "no value", at="0.easyFrom"),
    _refused(f"{OWN}.filters", [{"type": "zeroAdvantage", "hardTo": 0.1}], "no value", at="0.hardTo"),
    _refused(f"{OWN}.filters", [{"type": "difficulty", "hardTo": 1.0}], "a number below easyFrom (1)", at="0.hardTo"),
]
_ALGORITHM = [
    _refused("spec.algorithm.loss", {"type": "custom", "import": "b"}, IMPORT_PATH, at="import", says='found "b"'),
    _refused("spec.algorithm.advantage", {"type": "custom", "import": "b"}, IMPORT_PATH, at="import", says='found "b"'),
    _refused("spec.algorithm.filters", [{"type": "custom", "import": "b"}], IMPORT_PATH, at="0.import"),
    _refused("spec.algorithm.advantage", {"type": "none", "import": "a:b"}, "no value", at="import"),
    _refused("spec.algorithm.filters", [{"type": "zeroAdvantage", "hardTo": 0.1}], "no value", at="0.hardTo"),
    _refused("spec.algorithm.loss", {"type": "grpo", "maskHigh": 0.2}, "no value", at="maskHigh", says="only for dppo"),
    _refused("spec.algorithm.echo", {}, "no value", first=OPD, says="mode opd"),
    _refused("spec.algorithm.teacher.model", "big", "no value", says="only for modes sft and opd"),
    _refused("spec.algorithm.teacher.secretName", "key", "no value", says="only for modes sft and opd"),
    _refused("spec.algorithm.teacher.secretName", "A_b", OBJECT_NAME, first=OPD),
]
_SAMPLING = [
    _refused(f"{ENV}.sampling.frequencyPenalty", 0.5, "eval"),
    _refused(f"{ENV}.sampling.repetitionPenalty", 1.5, "eval"),
]
_WORDS = [
    _refused(f"{ENV}.name", "A_b", "at most 63 lower-case letters"),
    _refused(f"{EVAL}.name", "A_b", "at most 63 lower-case letters"),
    _refused(f"{EVAL}.name", "all", "other name"),
    _refused(f"{ENV}.type", "terminal", "builtin:<name>, verifiers:<id>, openenv:http"),
    _refused(f"{EVAL}.type", "terminal", "builtin:<name>, verifiers:<id>, openenv:http"),
    _refused(f"{EVAL}.type", "builtin:terminl", "builtin:kuhn, builtin:messages, builtin:swe, builtin:terminal"),
    _refused(f"{EVAL}.type", "agent:coder", "builtin:<name>, verifiers:<id>, openenv:http", says="not supported yet"),
    _refused(f"{ENV}.thinkTags", ["<think>"], "without brackets", at="0"),
    _refused(f"{EVAL}.thinkTags", ["<think>"], "without brackets", at="0"),
    _refused(f"{ENV}.workers", 0, "from 1 to 1024"),
    _refused(f"{EVAL}.workers", 0, "from 1 to 1024"),
    _refused(f"{ENV}.episodeTimeout", "10 m", DURATION),
    _refused(f"{EVAL}.episodeTimeout", "10 m", DURATION),
    _refused("spec.stallPolicy.noStepFor", "10", DURATION),
    _refused(f"{ENV}.echo.filter.import", "no-path", IMPORT_PATH),
    _refused("spec.trainer.parallel.fsdp", 0, "a whole number of at least 1"),
    *(
        _refused(f"spec.{role}.image", "a b;c", "a container image")
        for role in ("trainer", "inference", "orchestrator")
    ),
    _refused("spec.inference.extraHeaders", [{"name": "a b", "value": "x"}], "letters, digits", at="0.name"),
    _refused("spec.inference.extraHeaders", [{"name": "a", "value": " x"}], "characters of ASCII", at="0.value"),
    _refused("spec.model.tokenSecretName", "A_b", OBJECT_NAME),
    _refused("spec.code", {"configMap": "A_b"}, OBJECT_NAME, at="configMap"),
    _refused("spec.imagePullSecrets.0.name", "A_b", OBJECT_NAME),
    _refused("spec.storage", {"claimName": "A_b"}, OBJECT_NAME, at="claimName"),
    _refused("spec.storage.storageClassName", "A_b", OBJECT_NAME),
    _refused("spec.storage.size", "0Gi", "a Kubernetes quantity above 0"),
    _refused("spec.checkpoint.memory", {"limit": "0Gi"}, "a Kubernetes quantity above 0", at="limit"),
    _refused("spec.monitors.wandb", {"entity": "team"}, "no value", at="entity"),
    _refused("spec.monitors.wandb", {"baseUrl": "https://wandb.example.com"}, "no value", at="baseUrl"),
    _refused("spec.monitors.wandb.secretName", "A_b", OBJECT_NAME),
]
REFUSED_RULES: list[Refused] = [*_MEMBERS, *_OWN_ALGORITHM, *_ALGORITHM, *_SAMPLING, *_WORDS]
