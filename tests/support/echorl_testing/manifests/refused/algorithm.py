"""The algorithm: batches, loss, advantage, filters."""

from echorl_testing.manifests.refused.case import ENV, Refused

ALGORITHM: list[Refused] = [
    Refused([("spec.algorithm.batchSize", 65)], "spec.algorithm.batchSize", "groupSize (8)", id="not a multiple"),
    Refused(
        [("spec.algorithm.tokenBatchSize", 4096)],
        "spec.algorithm.tokenBatchSize",
        "exactly one of batchSize and tokenBatchSize",
        id="both batch sizes",
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
        [("spec.algorithm.advantage.baselinePer", "member")],
        "spec.algorithm.advantage.baselinePer",
        "no value",
        id="baselinePer",
    ),
    Refused(
        [("spec.algorithm.advantage.momentum", 0.9)], "spec.algorithm.advantage.momentum", "no value", id="momentum"
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
]
