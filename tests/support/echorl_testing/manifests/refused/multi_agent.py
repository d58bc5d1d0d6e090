"""Environments of several agents, and members."""

from echorl_core.builtin_environments import BUILTIN_MEMBERS
from echorl_testing.manifests.refused.case import ENV, Refused

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
    *(
        Refused(
            [
                (ENV, {"name": "talks", "type": f"builtin:{name}", "members": {"c": {"policy": "learner"}}}),
                ("spec.algorithm.advantage", {"type": "rae"}),
            ],
            "spec.environments.train[0].members",
            " and ".join(members),
            id=f"a member that {name} does not have",
        )
        for name, members in BUILTIN_MEMBERS.items()
    ),
    *(
        Refused(
            [
                (ENV, {"name": "talks", "type": f"builtin:{name}", "dropMembers": [*members, "nobody"]}),
                ("spec.algorithm.advantage", {"type": "rae"}),
            ],
            "spec.environments.train[0].dropMembers",
            "a list without one of",
            id=f"all of {name} dropped",
        )
        for name, members in BUILTIN_MEMBERS.items()
    ),
    *(
        Refused(
            [
                (ENV, {"name": "talks", "type": f"builtin:{name}", "dropMembers": list(members[1:])}),
                (f"{ENV}.members", {members[0]: {"policy": "endpoint", "url": "http://opponent", "model": "m"}}),
                ("spec.algorithm.advantage", {"type": "rae"}),
            ],
            f"spec.environments.train[0].members.{members[0]}.policy",
            "learner",
            id=f"nobody of {name} left to learn",
            server_path="spec.environments.train[0].members",
            server_says="no other member could learn",
        )
        for name, members in BUILTIN_MEMBERS.items()
    ),
]
