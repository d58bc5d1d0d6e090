"""Rows of rules as CEL: where they stand, and which field their errors name."""

import pytest

from echorl_manifest.crd.rules.rows import row_validations
from echorl_manifest.rules.row import Compared, Needed, Refused, has

SFT = has("spec.algorithm.mode", "sft")
LOSS = "spec.algorithm.loss"


def test_a_row_below_the_part_that_it_shares_with_its_condition_names_the_whole_field():
    row = Refused((LOSS,), "clipHigh", (SFT,), "none here")
    ((place, rule),) = row_validations([row])
    assert (place, rule["fieldPath"]) == ("spec.algorithm", ".loss.clipHigh")
    assert "has(self.loss) && has(self.loss.clipHigh)" in rule["rule"]
    assert rule["messageExpression"] == "'none here; found %s; accepted: no value'.format([self.loss.clipHigh])"


def test_a_row_at_the_part_itself_names_its_field():
    ((place, rule),) = row_validations([Refused(("spec.algorithm",), "loss", (SFT,), "none here")])
    assert (place, rule["fieldPath"]) == ("spec.algorithm", ".loss")


def test_one_inside_a_list_names_the_list_and_its_items():
    own = "spec.environments.train[].algorithm.loss"
    ((place, rule),) = row_validations([Refused((own,), "clipHigh", (SFT,), "none here")])
    assert (place, rule["fieldPath"]) == ("spec", ".environments.train")
    assert "algorithm.loss.clipHigh in" in rule["messageExpression"]


@pytest.mark.parametrize(
    "row",
    [
        Needed((LOSS,), "import", (SFT,), "a path"),
        Compared((LOSS,), "clipHigh", "at least", "clipLow", when=(SFT,)),
    ],
    ids=["needed", "compared"],
)
def test_others_with_a_condition_elsewhere_are_refused(row):
    told = r"row of spec\.algorithm\.loss\.\w+: found a condition of spec\.algorithm\.mode, accepted is one below"
    with pytest.raises(ValueError, match=told):
        list(row_validations([row]))
