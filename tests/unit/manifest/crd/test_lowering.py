"""Each keyword that pydantic writes and the API server refuses has a structural form; what has none is an error."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from echorl_manifest.crd.lowering import NotStructural, nullable, plain, structural
from echorl_manifest.models.base import ApiModel, Duration, JsonObject, Quantity
from echorl_manifest.models.environments import Workers


def lowered(annotation, default=...):
    """The schema of one field of that type."""
    fields = {"__annotations__": {"field": annotation}, "__doc__": "A model.", "__module__": __name__}
    model = type("Model", (ApiModel,), fields if default is ... else {**fields, "field": default})
    return structural(model.model_json_schema(by_alias=True))["properties"]["field"]


class Inner(ApiModel):
    """A part."""

    size: int = 3
    """How large ``it`` is."""


def test_references_are_put_in_place():
    schema = lowered(Inner)
    assert schema["type"] == "object"
    assert schema["properties"]["size"]["type"] == "integer"
    assert "$ref" not in schema


def test_a_field_says_what_it_is_and_then_what_its_type_is():
    assert lowered(Annotated[Inner, Field(description="The large one.")])["description"] == "The large one. A part."
    assert lowered(Annotated[Inner, Field(description="A part.")])["description"] == "A part."
    assert lowered(Annotated[Inner | None, Field(description="One.")], None)["description"] == "One. A part."


def test_const_is_an_enumeration_of_one():
    assert lowered(Literal["only"]) == {"enum": ["only"], "type": "string"}


def test_enumerations_stay():
    assert lowered(Literal["a", "b"]) == {"enum": ["a", "b"], "type": "string"}


def test_optional_values_are_those_of_their_type():
    assert lowered(Annotated[int, Field(ge=1)] | None, None) == {"type": "integer", "minimum": 1}


def test_exclusive_bounds_are_booleans_beside_the_bound():
    schema = lowered(Annotated[float, Field(gt=0, lt=1)])
    assert schema == {
        "type": "number",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 1,
        "exclusiveMaximum": True,
    }


def test_a_tuple_of_one_kind_is_a_list():
    schema = lowered(tuple[float, float])
    assert schema == {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


def test_a_tuple_of_several_kinds_has_no_form():
    with pytest.raises(NotStructural, match="prefixItems"):
        lowered(tuple[float, str])


def test_a_word_or_a_number():
    schema = lowered(Workers)
    (rule,) = schema.pop("x-kubernetes-validations")
    assert schema == {"x-kubernetes-int-or-string": True, "maxLength": 63}
    assert rule["rule"] == "type(self) == string ? self == 'auto' : self >= 1 && self <= 1024"
    assert rule["messageExpression"] == ("'found %s; accepted: auto, or a whole number from 1 to 1024'.format([self])")


def test_other_unions_have_no_form():
    with pytest.raises(NotStructural, match="anyOf"):
        lowered(int | Inner)


def test_closed_objects_lose_the_keyword():
    assert "additionalProperties" not in lowered(Inner)


def test_free_form_objects_keep_unknown_fields():
    assert lowered(JsonObject) == {
        "type": "object",
        "maxProperties": 256,
        "x-kubernetes-preserve-unknown-fields": True,
    }


def test_mappings_hold_a_schema():
    schema = lowered(dict[str, Inner])
    assert schema["additionalProperties"]["properties"]["size"]["type"] == "integer"


def test_titles_and_defaults_go_and_the_default_is_told():
    schema = lowered(Annotated[int, Field(description="How many.")], 3)
    assert schema == {"type": "integer", "description": "How many. Default: 3."}


@pytest.mark.parametrize(("default", "told"), [(False, "false"), ("auto", "auto"), (0, "0"), ((1, 2), "[1, 2]")])
def test_defaults_as_a_manifest_writes_them(default, told):
    assert lowered(Any, default)["description"] == f"Default: {told}."


@pytest.mark.parametrize("default", [None, (), {}])
def test_empty_defaults_say_nothing(default):
    assert "description" not in lowered(Any, default)


def test_patterns_are_rules_that_say_what_is_accepted():
    (rule,) = lowered(Quantity)["x-kubernetes-validations"]
    assert "pattern" not in lowered(Quantity)
    assert rule["rule"] == (
        r"self.matches('^\\d+(\\.\\d+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$')"
        " && isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))"
    )
    assert rule["message"] == "found another value; accepted: a Kubernetes quantity above 0, such as 500Gi"


def test_patterns_without_words_stay():
    assert lowered(Annotated[str, Field(pattern="^a$", max_length=3)])["pattern"] == "^a$"


def test_checks_that_a_schema_cannot_say_are_rules():
    (rule,) = lowered(Duration)["x-kubernetes-validations"]
    assert "duration(self) > duration('0s')" in rule["rule"]


def test_lists_by_key():
    keyed = Annotated[tuple[Inner, ...], Field(max_length=3, json_schema_extra={"x-list-map-key": "size"})]
    schema = lowered(keyed)
    assert (schema["x-kubernetes-list-type"], schema["x-kubernetes-list-map-keys"]) == ("map", ["size"])


def test_an_unknown_keyword_is_an_error():
    with pytest.raises(NotStructural, match="uniqueItems"):
        structural({"type": "array", "uniqueItems": True})


def test_null_stands_for_what_may_be_left_out():
    schema = structural(
        {
            "type": "object",
            "required": ["needed"],
            "properties": {
                "needed": {"type": "string"},
                "word": {"type": "string", "enum": ["a"]},
                "list": {"type": "array", "items": {"type": "object", "properties": {"deep": {"type": "string"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        }
    )
    nullable(schema)
    properties = schema["properties"]
    assert "nullable" not in properties["needed"]
    assert "nullable" not in properties["word"]
    assert properties["list"]["nullable"]
    assert "nullable" not in properties["list"]["items"]
    assert properties["list"]["items"]["properties"]["deep"]["nullable"]
    assert "nullable" not in properties["map"]["additionalProperties"]


def test_docstrings_lose_their_markup():
    assert plain("``auto``: what\n\n   the others leave.") == "auto: what the others leave."
