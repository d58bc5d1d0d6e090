"""The source of random spec changes."""

import copy

from echorl_manifest.mutability import Effect, effect_of_change
from echorl_testing.manifests.spec_changes import SpecChanges, is_valid, patterns, schema
from echorl_testing.operator.operator_world import SETTINGS, SPEC


def walk(seed: str, count: int):
    source, spec = SpecChanges(seed, SETTINGS), copy.deepcopy(SPEC)
    for _ in range(count):
        change = source.change(spec)
        yield change
        if change.valid and effect_of_change(change.before, change.after)[0] is not Effect.IMMUTABLE:
            spec = change.after


def test_a_seed_gives_the_same_changes():
    assert list(walk("a", 5)) == list(walk("a", 5))
    assert list(walk("a", 5)) != list(walk("b", 5))


def test_changes_are_of_every_effect_and_name_a_path_of_the_schema():
    known = set(patterns(schema()))
    found = [change for number in range(8) for change in walk(str(number), 5)]
    assert {change.pattern for change in found} <= known
    effects = {effect_of_change(change.before, change.after)[0] for change in found}
    assert {Effect.LIVE, Effect.NEW_ATTEMPT, Effect.IMMUTABLE} <= effects
    assert all(change.valid == is_valid(change.after, SETTINGS) for change in found[:10])
