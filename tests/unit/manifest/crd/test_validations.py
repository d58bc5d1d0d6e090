from echorl_manifest.crd.validations import at, is_set, literal, refusal, validation, value_or


def test_paths_and_reserved_words():
    assert at("loss.import") == "self.loss.__import__"
    assert is_set("loss.import", "oldSelf") == "has(oldSelf.loss) && has(oldSelf.loss.__import__)"
    assert value_or("model.dtype", "bfloat16") == (
        "(has(self.model) && has(self.model.dtype) ? self.model.dtype : 'bfloat16')"
    )


def test_literals():
    assert literal(r"it's \d") == r"'it\'s \\d'"
    assert literal(("a", 1, 2.5, True)) == "['a', 1, 2.5, true]"


def test_holes_become_an_expression_and_a_plain_message_stands_by():
    entry = validation("self.a > 1", 'found {self.a} of "{self.b}"; accepted: above 1', field="a.b")
    assert entry == {
        "rule": "self.a > 1",
        "message": "found another value of another value; accepted: above 1",
        "messageExpression": "'found %s of \"%s\"; accepted: above 1'.format([self.a, self.b])",
        "fieldPath": ".a.b",
        "reason": "FieldValueInvalid",
    }


def test_messages_without_holes_are_no_expressions():
    assert "messageExpression" not in validation("true", "no")


def test_refusals():
    entry = refusal("self.kind == 'x'", "part.value", "only for x")
    assert entry["rule"] == "!((self.kind == 'x') && has(self.part) && has(self.part.value))"
    assert entry["fieldPath"] == ".part.value"
    assert entry["reason"] == "FieldValueForbidden"
    assert entry["message"] == "only for x; found another value; accepted: no value"
    assert refusal("", "value", "no")["rule"] == "!(has(self.value))"
