"""What environments may have of the algorithm for their own."""

from echorl_testing.refused_manifests.case import ENV, Refused
from echorl_testing.refused_manifests.modes import OPD, SFT

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
]
