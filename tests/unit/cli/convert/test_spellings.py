"""Every key that has two spellings: both give the same manifest, both at once with two values are refused."""

import copy

import pytest

from echorl_cli.convert.conversion import Options, converted
from echorl_cli.convert.renames import RENAMES
from echorl_cli.convert.spelling import one_spelling
from echorl_cli.convert.tree import MISSING, at, location
from echorl_testing.manifests.prime_rl import TYPES, concrete, smallest, with_value

RENAMED = [pytest.param(rename, id=f"{rename.other}->{rename.read_as}") for rename in RENAMES]


def base_for(rename):
    """The smallest run; without what the rename itself brings."""
    tree = smallest()
    entries = {
        "orchestrator.environment": "train",
        "orchestrator.env": "train",
        "orchestrator.train.env": "train",
        "orchestrator.eval.env": "eval",
    }
    if kind := entries.get(rename.other):
        del tree["orchestrator"][kind]["source"]
    if rename.read_as.endswith("[].legacy.id"):
        del at(tree, location(concrete(rename.read_as.removesuffix(".id"))))["id"]
    if ".algo" in rename.read_as or ".teacher" in rename.read_as:
        where = (
            location(concrete(rename.read_as.partition(".algo")[0])) if ".algo" in rename.read_as else ("orchestrator",)
        )
        at(tree, where)["algo"] = {"type": "opd", "teacher": {"name": "big", "base_url": "http://teacher/v1"}}
    if rename.read_as == "max_steps":
        del tree["max_steps"]
    if "training_mode" in rename.other:
        del tree["orchestrator"]["algo"]
    return tree


def in_the_other_spelling(rename):
    return with_value(base_for(rename), location(concrete(rename.other)), rename.example)


def as_it_is_read(rename):
    value = rename.value(rename.example) if rename.value else rename.example
    assert value is not MISSING
    return with_value_merged(base_for(rename), location(concrete(rename.read_as)), value)


def with_value_merged(tree, where, value):
    present = at(tree, where)
    merged = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value
    return with_value(tree, where, merged)


def convert(tree):
    return converted(copy.deepcopy(tree), Options(types=TYPES, keep_going=True))


def comments(conversion):
    """All but those that say which generation's spellings these are."""
    return [line.comment for line in conversion.lines if "earlier" not in line.text]


@pytest.mark.parametrize("rename", RENAMED)
def test_both_spellings_give_the_same_manifest(rename):
    other, known = convert(in_the_other_spelling(rename)), convert(as_it_is_read(rename))
    assert other.document == known.document
    assert comments(other) == comments(known)


@pytest.mark.parametrize("rename", RENAMED)
def test_the_other_spelling_is_gone_after_the_move(rename):
    tree = in_the_other_spelling(rename)
    one_spelling(tree)
    assert at(tree, location(concrete(rename.other))) is MISSING


def different(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {key: different(item) for key, item in value.items()} if value else 20
    if isinstance(value, list):
        return [*value, *value] if value else [1]
    return value + 1 if isinstance(value, int | float) else f"{value}-other"


@pytest.mark.parametrize("rename", RENAMED)
def test_two_spellings_with_two_values_are_named(rename):
    converted_value = rename.value(rename.example) if rename.value else rename.example
    tree = with_value(in_the_other_spelling(rename), location(concrete(rename.read_as)), different(converted_value))
    message = "\n".join(str(problem) for problem in one_spelling(tree).problems)
    assert "two spellings of one key with different values" in message
    assert concrete(rename.other) in message.split(": two spellings", maxsplit=1)[0]
    assert concrete(rename.read_as) in message.split(": two spellings", maxsplit=1)[0]


@pytest.mark.parametrize("rename", RENAMED)
def test_two_spellings_with_one_value_are_one(rename):
    value = rename.value(rename.example) if rename.value else rename.example
    where = location(concrete(rename.read_as))
    both = with_value_merged(in_the_other_spelling(rename), where, value)
    assert convert(both).document == convert(as_it_is_read(rename)).document


def test_a_conflict_names_the_keys_as_the_file_has_them():
    tree = {"orchestrator": {"env": [{"id": "a"}], "train": {"source": [{"id": "b"}]}}}
    [problem] = one_spelling(tree).problems
    assert str(problem).startswith("orchestrator.env and orchestrator.train.source: two spellings of one key")


def test_a_conflict_names_the_key_that_a_moved_value_was_made_from():
    tree = {"orchestrator": {"environment": {"id": "a"}, "train": {"source": [{"id": "b"}]}}}
    [problem] = one_spelling(tree).problems
    assert str(problem).startswith("orchestrator.environment and orchestrator.train.source: two spellings of one")


def test_a_chain_of_moves_keeps_the_first_name():
    tree = {"orchestrator": {"env": [{"id": "a", "rollouts_per_example": 4}]}}
    spellings = one_spelling(tree)
    assert tree == {"orchestrator": {"train": {"source": [{"legacy": {"id": "a"}, "group_size": 4}]}}}
    assert spellings.written(location("orchestrator.train.source[0].group_size")) == location(
        "orchestrator.env[0].rollouts_per_example"
    )


def test_tables_in_two_spellings_are_put_together():
    tree = {"orchestrator": {"sampling": {"temperature": 0.5}, "train": {"sampling": {"max_tokens": 9}}}}
    one_spelling(tree)
    assert tree["orchestrator"]["train"]["sampling"] == {"temperature": 0.5, "max_completion_tokens": 9}


def test_a_section_that_is_no_table_is_refused():
    [problem] = one_spelling({"trainer": 3}).problems
    assert str(problem) == "trainer: found 3; accepted: a table"
