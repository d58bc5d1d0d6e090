"""What environments may have of the algorithm for their own."""

from echorl_testing.manifests.refused.case import ENV, Refused
from echorl_testing.manifests.refused.modes import OPD, SFT

OVERRIDES: list[Refused] = [
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
    ),
    *(
        Refused(
            [*changes, (f"{ENV}.algorithm", {key: value})],
            f"spec.environments.train[0].algorithm.{key}",
            accepted,
            id=f"own {key} in {mode}",
            server_path="spec.environments.train",
            server_says=f"in mode {mode}; found algorithm.{key} in",
        )
        for mode, changes, accepted in (("sft", SFT, "one of groupSize"), ("opd", OPD, "one of groupSize, filters"))
        for key, value in (
            ("loss", {"klTau": 0.1}),
            ("rlWeight", 0.5),
            ("advantage", {"type": "none"}),
            ("filters", []),
        )
        if key not in accepted
    ),
    Refused(
        [*SFT, (f"{ENV}.algorithm", {"filters": [{"type": "gibberish"}]})],
        "spec.environments.train[0].algorithm.filters[0].type",
        "custom",
        id="own filter in sft",
        server_path="spec.environments.train",
        server_says="mode sft has neither advantages nor samples",
    ),
    Refused(
        [*OPD, (f"{ENV}.algorithm", {"filters": [{"type": "zeroAdvantage"}]})],
        "spec.environments.train[0].algorithm.filters[0].type",
        "repetition",
        id="own filter in opd",
        server_path="spec.environments.train",
        server_says="terminal",
    ),
]
