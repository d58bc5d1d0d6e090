"""Environments of several agents, and members."""

from echorl_core.builtin_environments import BUILTIN_MEMBERS
from echorl_testing.manifests.refused.case import ENV, Refused


def _wrong_seats(name: str, place: str) -> list[Refused]:
    """Members of a built-in environment that cannot work, as one for training or for evals."""
    members, path = BUILTIN_MEMBERS[name], f"spec.environments.{place}[0]"
    opponent = {members[0]: {"policy": "endpoint", "url": "http://opponent", "model": "m"}}

    def changes(**fields: object) -> list[tuple[str, object]]:
        talks = {"name": "talks", "type": f"builtin:{name}", **fields}
        rae = [("spec.algorithm.advantage", {"type": "rae"})] if place == "train" else []
        return [(f"spec.environments.{place}", [talks]), *rae]

    return [
        Refused(
            changes(members={"c": {"policy": "learner"}}),
            f"{path}.members",
            " and ".join(members),
            id=f"{place}: a member that {name} does not have",
        ),
        Refused(
            changes(dropMembers=[*members, "nobody"]),
            f"{path}.dropMembers",
            f"a list without one of {', '.join(members)}",
            id=f"{place}: all of {name} dropped",
        ),
        Refused(
            changes(dropMembers=list(members[1:]), members=opponent),
            f"{path}.members.{members[0]}.policy",
            "learner",
            id=f"{place}: nobody of {name} left to learn",
            server_path=f"{path}.members",
            server_says="no other member could learn",
        ),
    ]


MULTI_AGENT: list[Refused] = [
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
    *(case for name in BUILTIN_MEMBERS for place in ("train", "eval") for case in _wrong_seats(name, place)),
]
