"""What the modes sft and opd ask for, and what has no meaning in them."""

from typing import Any

from echorl_testing.manifests.refused.case import ENV, EVAL, Refused

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
MODES: list[Refused] = [
    Refused([("spec.algorithm.sft", {})], "spec.algorithm.sft", "no value", id="sft block of mode rl"),
    Refused([*SFT, ("spec.algorithm.loss", {"klTau": 0.1})], "spec.algorithm.loss", "no value", id="loss of sft"),
    Refused([*SFT, ("spec.algorithm.rlWeight", 0.5)], "spec.algorithm.rlWeight", "no value", id="rlWeight of sft"),
    Refused(
        [*SFT, ("spec.trainer.routerReplay", True)],
        "spec.trainer.routerReplay",
        "no value",
        id="replay of sft",
    ),
    Refused(
        [*SFT, ("spec.algorithm.rewardPerBranch", "split")],
        "spec.algorithm.rewardPerBranch",
        "no value",
        id="rewardPerBranch of sft",
    ),
    Refused(
        [*OPD, ("spec.algorithm.rewardPerBranch", "split")],
        "spec.algorithm.rewardPerBranch",
        "no value",
        id="rewardPerBranch of opd",
    ),
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
    Refused([("spec.inference", {"replicas": 0})], "spec.inference.replicas", "at least 1", id="rl without engines"),
    Refused(
        [*SFT, ("spec.inference", {"replicas": 0}), ("spec.environments.eval", [EVAL])],
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
