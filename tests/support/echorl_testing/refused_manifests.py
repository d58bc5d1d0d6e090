"""Manifests with one thing wrong each: what ``echorl validate`` and the API server must both refuse, by its field."""

import re
from dataclasses import dataclass
from typing import Any

from echorl_testing.manifests import full, shortest, with_value

ENV = "spec.environments.train.0"
EVAL = {"name": "held-out", "type": "builtin:digits"}


@dataclass(frozen=True)
class Refused:
    """A manifest that breaks one rule."""

    changes: list[tuple[str, Any]]
    """To a manifest that sets every field."""
    path: str
    """That the problem must name."""
    accepted: str
    """Words that must stand in what is accepted."""
    id: str
    server_path: str = ""
    """Path that the API server's error names instead, where it cannot name an item of a list."""
    server_says: str = ""
    """Words in the API server's error instead."""

    def document(self) -> dict[str, Any]:
        """The manifest."""
        document = full()
        for path, value in self.changes:
            document = with_value(document, path, value)
        return document


BROKEN_RULES: list[Refused] = [
    Refused([("spec.algorithm.batchSize", 65)], "spec.algorithm.batchSize", "groupSize (8)", id="not a multiple"),
    Refused(
        [("spec.algorithm.tokenBatchSize", 4096)],
        "spec.algorithm.tokenBatchSize",
        "exactly one of batchSize and tokenBatchSize",
        id="both batch sizes",
    ),
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
        "builtin:kuhn, builtin:messages, builtin:terminal",
        id="unknown built-in",
    ),
    Refused(
        [(f"{ENV}.echo", {"filter": {"import": "a:b"}})],
        "spec.environments.train[0].echo",
        "at least one of system, user",
        id="echo without role",
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
    Refused([("spec.trainer.seqLen", 16383)], "spec.trainer.seqLen", "16384", id="seqLen below maxModelLen"),
    Refused([("spec.trainer.parallel.fsdp", 2)], "spec.trainer.parallel.fsdp", "auto", id="fsdp x replicate"),
    Refused(
        [("spec.trainer.parallel", {"replicate": 3})],
        "spec.trainer.parallel.replicate",
        "divisor of the 8",
        id="replicate",
    ),
    Refused([("spec.inference.tensorParallel", 4)], "spec.inference.tensorParallel", "at most 2", id="tensorParallel"),
    Refused([("spec.inference.extraArgs", ["--model=x"])], "spec.inference.extraArgs[0]", "other", id="own argument"),
    Refused(
        [("spec.inference.extraArgs", ["-q", "--logprobs_mode", "raw_logprobs"])],
        "spec.inference.extraArgs[1]",
        "other",
        id="own argument, underscores",
    ),
    Refused([("spec.resume", {"policy": "FromStep"})], "spec.resume.step", "step of a", id="FromStep without step"),
    Refused([("spec.resume", {"step": 3})], "spec.resume.step", "no value", id="step without FromStep"),
    Refused([("spec.resume", {"onExisting": "Archive"})], "spec.resume.onExisting", "Refuse", id="Archive, not Never"),
    Refused([("spec.checkpoint.keepEvery", 30)], "spec.checkpoint.keepEvery", "interval (25)", id="keepEvery"),
    Refused([("spec.storage.claimName", "c")], "spec.storage.size", "no value", id="size of a claim that exists"),
    Refused(
        [("spec.storage.accessMode", "ReadWriteOnce")],
        "spec.storage.accessMode",
        "ReadWriteMany",
        id="one node, 2 replicas",
    ),
    Refused([("spec.algorithm.loss.import", "a:b")], "spec.algorithm.loss.import", "no value", id="import of dppo"),
    Refused(
        [("spec.algorithm.loss", {"type": "grpo", "maskLow": 0.2})],
        "spec.algorithm.loss.maskLow",
        "no value",
        id="maskLow of grpo",
    ),
    Refused([("spec.algorithm.loss.clipHigh", 0.2)], "spec.algorithm.loss.clipHigh", "no value", id="clipHigh of dppo"),
    Refused(
        [("spec.algorithm.loss", {"type": "reinforce", "clipLow": 0.2})],
        "spec.algorithm.loss.clipLow",
        "no value",
        id="clipLow of reinforce",
    ),
    Refused(
        [("spec.algorithm.loss", {"type": "custom", "import": "a:b", "klTau": 0.1}), (f"{ENV}.echo", None)],
        "spec.algorithm.loss.klTau",
        "no value",
        id="klTau of a custom loss",
    ),
    Refused(
        [("spec.algorithm.advantage.momentum", 0.9)], "spec.algorithm.advantage.momentum", "no value", id="momentum"
    ),
    Refused([("spec.algorithm.sft", {})], "spec.algorithm.sft", "no value", id="sft block of mode rl"),
    Refused(
        [("spec.model.name", "/models/x"), ("spec.model.revision", "v2")],
        "spec.model.revision",
        "no value",
        id="revision of a path",
    ),
    Refused(
        [("spec.algorithm.loss", {"type": "custom"})],
        "spec.algorithm.loss.import",
        "an import path such as",
        id="custom loss without import",
    ),
    Refused(
        [("spec.algorithm.filters.0", {"type": "zeroAdvantage", "import": "a:b"})],
        "spec.algorithm.filters[0].import",
        "no value",
        id="import of zeroAdvantage",
    ),
    Refused(
        [("spec.algorithm.filters.0", {"type": "custom"})],
        "spec.algorithm.filters[0].import",
        "an import path such as",
        id="custom filter without import",
    ),
    Refused(
        [("spec.algorithm.advantage.order", "updateThenSubtract")],
        "spec.algorithm.advantage.order",
        "no value",
        id="order",
    ),
    Refused(
        [("spec.algorithm.advantage", {"type": "custom"})],
        "spec.algorithm.advantage.import",
        "an import path such as",
        id="custom advantage without import",
    ),
    Refused(
        [("spec.algorithm.advantage", {"type": "maxRl", "lengthShaping": {"by": "turns"}})],
        "spec.algorithm.advantage.lengthShaping",
        "no value",
        id="lengthShaping of maxRl",
    ),
    Refused(
        [("spec.algorithm.advantage.lengthShaping", {"by": "turns", "completionWeight": 1.0})],
        "spec.algorithm.advantage.lengthShaping.completionWeight",
        "no value",
        id="completionWeight by turns",
    ),
    Refused(
        [("spec.algorithm.advantage.lengthShaping", {"by": "turns", "environmentWeight": 1.0})],
        "spec.algorithm.advantage.lengthShaping.environmentWeight",
        "no value",
        id="environmentWeight by turns",
    ),
    Refused(
        [("spec.algorithm.advantage.lengthShaping", {"by": "tokens", "completionWeight": 0, "environmentWeight": 0})],
        "spec.algorithm.advantage.lengthShaping.completionWeight",
        "a number above 0",
        id="both weights 0",
    ),
    Refused(
        [("spec.algorithm.filters", [{"type": "zeroAdvantage", "easyFrom": 0.9}])],
        "spec.algorithm.filters[0].easyFrom",
        "no value",
        id="easyFrom of zeroAdvantage",
    ),
    Refused(
        [("spec.algorithm.filters", [{"type": "difficulty", "hardTo": 1.0}])],
        "spec.algorithm.filters[0].hardTo",
        "a number below easyFrom (1)",
        id="a filter's bounds the wrong way round",
    ),
    Refused(
        [(f"{ENV}.curriculum", {"easyFrom": 0.25, "hardTo": 0.5})],
        "spec.environments.train[0].curriculum.hardTo",
        "a number below easyFrom (0.25)",
        id="a curriculum's bounds the wrong way round",
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
    Refused(
        [("spec.trainer.parallel", {"context": 3})], "spec.trainer.parallel.context", "divisor of the 8", id="context"
    ),
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
    Refused(
        [("spec.algorithm.advantage", {"type": "rae"})],
        "spec.algorithm.advantage.type",
        "groupMean, none",
        id="rae, one agent",
    ),
    Refused(
        [(f"{ENV}.type", "builtin:debate")],
        "spec.algorithm.advantage.type",
        "rae",
        id="several agents without rae",
    ),
    *(
        Refused(
            [(f"{ENV}.type", "builtin:debate"), ("spec.algorithm.advantage", advantage)],
            "spec.algorithm.advantage.type",
            "rae",
            id=f"several agents with {advantage['type']}",
        )
        for advantage in ({"type": "none"}, {"type": "custom", "import": "mine:advantages"}, {"type": "maxRl"})
    ),
    Refused(
        [
            (f"{ENV}.type", "builtin:kuhn"),
            ("spec.algorithm.advantage", {"type": "rae"}),
            ("spec.algorithm.filters", [{"type": "zeroAdvantage"}, {"type": "difficulty"}]),
        ],
        "spec.algorithm.filters[1].type",
        "zeroAdvantage, gibberish, repetition or custom",
        id="difficulty of several agents",
        server_path="spec.algorithm.filters",
    ),
    Refused(
        [
            (ENV, {"name": "talks", "type": "import:talks:make", "members": {"judge": {"policy": "learner"}}}),
            ("spec.algorithm.advantage", {"type": "rae"}),
            (f"{ENV}.algorithm", {"filters": [{"type": "difficulty", "enforce": False}]}),
        ],
        "spec.environments.train[0].algorithm.filters[0].type",
        "zeroAdvantage, gibberish, repetition or custom",
        id="difficulty of several agents, by a filter of their own",
        server_path="spec.environments.train[0].algorithm.filters",
    ),
    Refused(
        [
            (f"{ENV}.type", "builtin:debate"),
            ("spec.algorithm.advantage", {"type": "rae"}),
            (f"{ENV}.curriculum", {"keepHard": 0.5}),
        ],
        "spec.environments.train[0].curriculum",
        "no value",
        id="curriculum of several agents",
    ),
    Refused(
        [
            ("spec.algorithm", {"mode": "opd", "teacher": {"url": "http://teacher/v1", "model": "big"}}),
            (ENV, {"name": "talks", "type": "builtin:debate"}),
        ],
        "spec.environments.train[0].type",
        "one agent",
        id="several agents in mode opd",
        server_path="spec.environments.train",
        server_says="builtin:debate",
    ),
    Refused(
        [(f"{ENV}.members", {"judge": {"policy": "learner"}})],
        "spec.environments.train[0].members",
        "no value",
        id="members of a single agent",
    ),
    Refused(
        [(f"{ENV}.members", {"judge": {"policy": "base"}})],
        "spec.environments.train[0].members.judge.policy",
        "learner or endpoint",
        id="base without an adapter",
        server_path="spec.environments.train",
    ),
    Refused(
        [(f"{ENV}.members", {"judge": {"policy": "endpoint", "model": "m"}})],
        "spec.environments.train[0].members.judge.url",
        "http:// or https://",
        id="endpoint without url",
        server_path="spec.environments.train[0].members[judge].url",
    ),
    Refused(
        [(f"{ENV}.members", {"judge": {"policy": "endpoint", "model": "m", "url": "judge:80"}})],
        "spec.environments.train[0].members.judge.url",
        "http:// or https://",
        id="endpoint with another url",
        server_path="spec.environments.train[0].members[judge].url",
    ),
    Refused(
        [(f"{ENV}.members", {"judge": {"policy": "endpoint", "url": "http://judge"}})],
        "spec.environments.train[0].members.judge.model",
        "the model's name",
        id="endpoint without model",
        server_path="spec.environments.train[0].members[judge].model",
    ),
    Refused(
        [(f"{ENV}.members", {"judge": {"secretName": "key"}})],
        "spec.environments.train[0].members.judge.secretName",
        "no value",
        id="secret of the learner",
        server_path="spec.environments.train[0].members[judge].secretName",
    ),
    Refused(
        [
            (f"{ENV}.type", "builtin:kuhn"),
            ("spec.algorithm.advantage", {"type": "rae"}),
            ("spec.algorithm.filters", [{"type": "zeroAdvantage", "stage": "group"}]),
        ],
        "spec.algorithm.filters[0].stage",
        "batch",
        id="zero advantage before RAE knows",
        server_path="spec.algorithm.filters",
    ),
    Refused([("metadata.name", "a" * 41)], "metadata.name", "at most 40", id="long name"),
]


SFT: list[tuple[str, Any]] = [
    ("spec.algorithm", {"mode": "sft"}),
    ("spec.environments", {"train": [{"name": "talks", "type": "builtin:messages", "args": {"path": "talks.jsonl"}}]}),
]
"""Changes that make a run of mode sft on given conversations."""
OPD: list[tuple[str, Any]] = [
    ("spec.algorithm", {"mode": "opd", "teacher": {"url": "http://teacher:8000/v1", "model": "big"}}),
    ("spec.environments", {"train": [{"name": "terminal", "type": "builtin:terminal"}]}),
]
"""Changes that make a run of mode opd."""
TEACHER = "spec.algorithm.teacher"
MODE_RULES: list[Refused] = [
    Refused([*SFT, ("spec.algorithm.loss", {"klTau": 0.1})], "spec.algorithm.loss", "no value", id="loss of sft"),
    Refused([*SFT, ("spec.algorithm.rlWeight", 0.5)], "spec.algorithm.rlWeight", "no value", id="rlWeight of sft"),
    Refused(
        [*SFT, ("spec.algorithm.advantage", {"type": "none"})],
        "spec.algorithm.advantage",
        "no value",
        id="advantage of sft",
    ),
    Refused(
        [*SFT, ("spec.algorithm.echo", {"normalizer": "perSequence"})],
        "spec.algorithm.echo",
        "no value",
        id="echo normaliser of sft",
    ),
    Refused(
        [*SFT, ("spec.algorithm.filters", [{"type": "custom", "import": "a:b"}, {"type": "gibberish"}])],
        "spec.algorithm.filters[1].type",
        "custom",
        id="filter of sft",
        server_path="spec.algorithm.filters",
        server_says="gibberish",
    ),
    Refused(
        [*SFT, ("spec.algorithm.sft", {"toolNames": ["grep"]})],
        "spec.algorithm.sft.toolNames",
        "no value",
        id="toolNames without role tool",
    ),
    Refused(
        [*SFT, (f"{ENV}.curriculum", {"keepEasy": 0.5})],
        "spec.environments.train[0].curriculum",
        "no value",
        id="curriculum of sft",
        server_path="spec.environments.train",
        server_says="talks",
    ),
    Refused([*SFT, ("spec.algorithm.groupSize", 4)], "spec.algorithm.groupSize", "1", id="groups of sft"),
    Refused(
        [*SFT, ("spec.environments.train.0", {"name": "played", "type": "builtin:terminal"})],
        f"{TEACHER}.url",
        "base URL",
        id="sft plays without teacher",
    ),
    Refused([*SFT, (TEACHER, {"model": "big"})], f"{TEACHER}.url", "base URL", id="teacher of sft without url"),
    Refused(
        [*SFT, (TEACHER, {"url": "http://teacher/v1"})], f"{TEACHER}.model", "name", id="teacher of sft without model"
    ),
    Refused(
        [*SFT, ("spec.environments.eval", [{"name": "held-out", "type": "builtin:messages"}])],
        "spec.environments.eval[0].type",
        "builtin:<name> other than messages",
        id="eval of given conversations",
    ),
    Refused(
        [(f"{ENV}.type", "builtin:terminal-demonstrations")],
        "spec.environments.train[0].type",
        "builtin:<name> other than messages",
        id="given conversations of mode rl",
        server_path="spec.environments.train",
        server_says="terminal-demonstrations",
    ),
    Refused([*SFT, ("spec.model.renderer", "engine")], "spec.model.renderer", "compact", id="sft, engine renders"),
    Refused(
        [(f"{ENV}.algorithm.loss", {"aggregation": "token"})],
        "spec.environments.train[0].algorithm.loss.aggregation",
        "no value",
        id="own aggregation",
    ),
    Refused(
        [(f"{ENV}.algorithm.loss", {"type": "custom", "import": "a:b"})],
        "spec.environments.train[0].algorithm.loss.type",
        "built-in",
        id="own custom loss",
    ),
    Refused(
        [(f"{ENV}.algorithm.loss", {"type": "grpo", "maskLow": 0.1})],
        "spec.environments.train[0].algorithm.loss.maskLow",
        "no value",
        id="own maskLow of grpo",
    ),
    Refused(
        [(f"{ENV}.algorithm.advantage", {"type": "custom", "import": "a:b"})],
        "spec.environments.train[0].algorithm.advantage.type",
        "built-in",
        id="own custom advantage",
    ),
    Refused(
        [(f"{ENV}.algorithm.filters", [{"type": "gibberish"}, {"type": "custom", "import": "a:b"}])],
        "spec.environments.train[0].algorithm.filters[1].type",
        "built-in",
        id="own custom filter",
        server_path="spec.environments.train[0].algorithm.filters",
        server_says="custom",
    ),
    Refused(
        [*SFT, (f"{ENV}.algorithm", {"rlWeight": 0.5})],
        "spec.environments.train[0].algorithm.rlWeight",
        "groupSize",
        id="own rlWeight in sft",
        server_path="spec.environments.train",
        server_says="talks",
    ),
    Refused(
        [*OPD, (f"{ENV}.algorithm", {"loss": {"klTau": 0.1}})],
        "spec.environments.train[0].algorithm.loss",
        "groupSize, filters",
        id="own loss in opd",
        server_path="spec.environments.train",
        server_says="terminal",
    ),
    Refused(
        [*OPD, (f"{ENV}.algorithm", {"filters": [{"type": "zeroAdvantage"}]})],
        "spec.environments.train[0].algorithm.filters[0].type",
        "repetition",
        id="own filter in opd",
        server_path="spec.environments.train",
        server_says="terminal",
    ),
    Refused([("spec.inference.replicas", 0)], "spec.inference.replicas", "at least 1", id="rl without engines"),
    Refused(
        [*SFT, ("spec.inference.replicas", 0), ("spec.environments.eval", [EVAL])],
        "spec.inference.replicas",
        "at least 1",
        id="evals without engines",
    ),
    Refused([(f"{TEACHER}.url", "http://teacher/v1")], f"{TEACHER}.url", "no value", id="teacher of rl"),
    Refused([*OPD, (TEACHER, None)], f"{TEACHER}.url", "base URL", id="opd without teacher"),
    Refused([*OPD, (f"{TEACHER}.model", None)], f"{TEACHER}.model", "name", id="opd without model"),
    Refused(
        [*OPD, ("spec.algorithm.loss", {"type": "grpo"})], "spec.algorithm.loss.type", "no value", id="loss of opd"
    ),
    Refused(
        [*OPD, ("spec.algorithm.loss", {"maskHigh": 0.2})], "spec.algorithm.loss.maskHigh", "no value", id="mask of opd"
    ),
    Refused([*OPD, ("spec.algorithm.rlWeight", 0.5)], "spec.algorithm.rlWeight", "no value", id="rlWeight of opd"),
    Refused(
        [*OPD, ("spec.algorithm.advantage", {"type": "none"})],
        "spec.algorithm.advantage",
        "no value",
        id="advantage of opd",
    ),
    Refused(
        [*OPD, ("spec.algorithm.filters", [{"type": "zeroAdvantage"}])],
        "spec.algorithm.filters[0].type",
        "repetition",
        id="filter of opd",
        server_path="spec.algorithm.filters",
        server_says="zeroAdvantage",
    ),
    Refused(
        [*OPD, (f"{ENV}.sampling", {"temperature": 0.5})],
        "spec.environments.train[0].sampling.temperature",
        "1",
        id="temperature of opd",
        server_path="spec.environments.train",
        server_says="terminal",
    ),
]
BROKEN_RULES += MODE_RULES


NOT_SUPPORTED_YET: list[tuple[str, Any]] = [
    (f"{ENV}.type", "openenv:echo"),
    (f"{ENV}.type", "verifiers:owner/env"),
    (f"{ENV}.type", "agent:coder"),
    ("spec.environments.eval.0.sampling.frequencyPenalty", 0.5),
    ("spec.trainer.parallel.context", 2),
    ("spec.weightTransfer.mode", "nccl"),
    ("spec.checkpoint.weightsOnlyEvery", 10),
]
CLUSTER_ONLY: list[tuple[str, Any]] = [
    ("spec.model.tokenSecretName", "hub"),
    ("spec.model.revision", "v2"),
    ("spec.suspend", True),
    ("spec.stallPolicy.action", "Fail"),
    ("spec.code.configMap", "code"),
]


def unsupported_base() -> dict[str, Any]:
    """A short manifest that each of ``NOT_SUPPORTED_YET`` and ``CLUSTER_ONLY`` is one change to."""
    document = with_value(shortest(), "spec.algorithm.filters", [{"type": "zeroAdvantage"}])
    return with_value(document, "spec.environments.eval", [EVAL])


def indexed(path: str) -> str:
    """A dotted path as problems write it: ``train.0`` is ``train[0]``."""
    return re.sub(r"\.(\d+)", r"[\1]", path)
