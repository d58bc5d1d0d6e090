"""What nothing carries out yet, anywhere, as CEL: refused in the words of ``echorl validate``, never ignored."""

from collections.abc import Mapping

from echorl_manifest.crd.rules.rows import by_place
from echorl_manifest.crd.validations import Validation, validation
from echorl_manifest.models.environments import TYPES
from echorl_manifest.problems import NOT_SUPPORTED
from echorl_manifest.rules.table import ENVIRONMENTS
from echorl_manifest.rules.unsupported import PLAYED

_OTHER_TYPE = validation(
    "(" + " || ".join(f"self.type.startsWith('{source}:')" for source in PLAYED) + ")",
    f"{NOT_SUPPORTED}: environments of {{self.type.split(':')[0]}}; found \"{{self.type}}\"; accepted: {TYPES}",
    field="type",
    reason="FieldValueForbidden",
)

REFUSALS: Mapping[str, tuple[Validation, ...]] = by_place((place, _OTHER_TYPE) for place in ENVIRONMENTS)
"""By the place in the schema that they stand at."""
