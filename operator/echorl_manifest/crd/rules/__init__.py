"""Rules across fields as CEL, in the words of ``echorl validate``: rows of its table, and by part what is no row.

Each stands where it can name the field. In CEL a null is "not has()", and a default has to be spelled out. ``args``,
``kwargs`` and ``template`` cannot be seen. A list's item cannot be named from above it: such an error names the list,
and its message the item.
"""

from collections.abc import Iterable, Mapping

from echorl_manifest.crd.rules import algorithm, environments, inference, model, modes, multi_agent, run, trainer
from echorl_manifest.crd.rules.rows import by_place, row_validations
from echorl_manifest.crd.validations import Validation
from echorl_manifest.rules.table import ENVIRONMENTS, SHAPING, TABLE

_BY_HAND: Mapping[str, Iterable[Validation]] = {
    "": run.run(),
    "spec": (*modes.spec(), *multi_agent.spec()),
    "spec.model": model.model(),
    "spec.algorithm": (*algorithm.algorithm(), *multi_agent.algorithm()),
    "spec.algorithm.sft": modes.sft(),
    **{place: algorithm.length_shaping() for place in SHAPING},
    "spec.environments": environments.environments(),
    **{place: (*environments.environment(), *multi_agent.environment()) for place in ENVIRONMENTS},
    "spec.environments.train[]": (*environments.environment(), *multi_agent.trained()),
    "spec.trainer": trainer.trainer(),
    "spec.inference": inference.inference(),
    "spec.inference.extraArgs[]": inference.extra_argument(),
    **{f"{place}.members{{}}": multi_agent.member() for place in ENVIRONMENTS},
}


RULES: Mapping[str, tuple[Validation, ...]] = by_place(
    (*row_validations(TABLE), *((place, rule) for place, rules in _BY_HAND.items() for rule in rules))
)
"""By the place in the schema that they stand at."""
