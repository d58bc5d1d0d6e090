"""Whatever is broken in a manifest, some problem names the broken field, and nothing raises."""

import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echorl_manifest import EchoRLRun, problems
from echorl_manifest.schema import bare, inside, is_model, keys, path_text
from echorl_testing.manifests.documents import full

FREE_TEXT = {"labels", "annotations"}


def places(value, annotation=EchoRLRun, location=()):
    """Every location of a document that a type is known for, with the type."""
    core = bare(annotation)
    if core is Any:
        return
    if location:
        yield location, annotation
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return
    for key, item in items:
        deeper = inside(annotation, key)
        if deeper is not None:
            yield from places(item, deeper, (*location, key))


def at(document, location):
    for segment in location:
        document = document[segment]
    return document


PLACES = list(places(full()))
MODELS = [
    ((), EchoRLRun),
    *((place, bare(kind)) for place, kind in PLACES if is_model(bare(kind)) and isinstance(at(full(), place), dict)),
]
SCALARS = [
    location
    for location, kind in PLACES
    if bare(kind) in {str, int, float, bool} and not FREE_TEXT & set(location) and kind is not None
]
REQUIRED = [(*location, key) for location, model in MODELS for key, field in keys(model).items() if field.is_required()]


def paths(document):
    found = problems(document)
    assert all(problem.found and problem.accepted for problem in found)
    return {problem.path for problem in found}


@given(place=st.sampled_from(PLACES), alien=st.sampled_from([[[[]]], {"alien key": 1}, 3.5, "\x00 alien", b"\x00"]))
@settings(max_examples=150, deadline=None)
def test_value_of_another_kind(place, alien):
    location, kind = place
    core = bare(kind)
    fits = isinstance(alien, dict) and (core is dict or "dict" in str(core))
    fits |= isinstance(alien, float) and "float" in str(kind)
    fits |= isinstance(alien, str) and (
        "Text" in str(kind) or "text of" in str(kind) or bool(FREE_TEXT & set(location))
    )
    if fits:
        return
    document = full()
    at(document, location[:-1])[location[-1]] = alien
    expected = path_text(location)
    assert any(path == expected or path.startswith((f"{expected}[", f"{expected}.")) for path in paths(document))


@given(location=st.sampled_from(SCALARS), value=st.sampled_from([math.nan, math.inf, -(10**9), "", []]))
@settings(max_examples=150, deadline=None)
def test_value_out_of_any_range(location, value):
    document = full()
    at(document, location[:-1])[location[-1]] = value
    assert path_text(location) in paths(document)


@given(
    model=st.sampled_from(MODELS),
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    value=st.none() | st.integers(),
)
@settings(max_examples=150, deadline=None)
def test_unknown_key(model, key, value):
    location, kind = model
    if key in keys(kind):
        return
    document = full()
    at(document, location)[key] = value
    assert path_text((*location, key)) in paths(document)


@given(location=st.sampled_from(REQUIRED))
@settings(deadline=None)
def test_missing_key(location):
    document = full()
    del at(document, location[:-1])[location[-1]]
    assert path_text(location) in paths(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "model", "name", "environments", "train", "type", "echo", "x", ""]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(places=st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_raises_whatever_is_replaced(places):
    document = full()
    for (location, _), value in places:
        try:
            at(document, location[:-1])[location[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    for problem in problems(document):
        assert str(problem)


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_nothing_raises_for_any_document(document):
    assert problems(document)
