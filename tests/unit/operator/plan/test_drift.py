import copy
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_operator.plan.drift import needs_apply, quantity

POD_SPEC = {
    "containers": [
        {
            "name": "trainer",
            "image": "a:1",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"containerPort": 80, "name": "http"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "command": ["a", "b"],
        }
    ],
    "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}


def _set(spec: Any = None, **annotations: str) -> dict[str, Any]:
    metadata = {"name": "x", "labels": {"l": "1"}, "annotations": {"echorl.dev/hash": "h", **annotations}}
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec or POD_SPEC}
    return copy.deepcopy(body)


def _live(body: dict[str, Any]) -> bytes:
    return json.dumps({key: value for key, value in body.items() if key not in ("apiVersion", "kind")}).encode()


def test_what_is_as_desired_needs_nothing() -> None:
    assert not needs_apply(_set(), _live(_set()))


def test_defaults_and_other_managers_fields_are_no_matter() -> None:
    live = _set()
    live["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    container = live["spec"]["containers"][0]
    container |= {"imagePullPolicy": "Always", "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}
    container["env"].insert(0, {"name": "INJECTED", "value": "x"})
    container["ports"][0]["protocol"] = "TCP"
    live["spec"]["containers"].insert(0, {"name": "sidecar"})
    live["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "1048576Ki"
    assert not needs_apply(_set(), _live(live))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "labels", "l"), "2"),
        (("metadata", "annotations", "echorl.dev/hash"), "other"),
        (("spec", "containers", 0, "image"), "a:2"),
        (("spec", "containers", 0, "env", 1, "value"), "1"),
        (("spec", "containers", 0, "env", 1, "name"), "C"),
        (("spec", "containers", 0, "ports", 0, "containerPort"), 81),
        (("spec", "containers", 0, "resources", "limits", "cpu"), "1001m"),
        (("spec", "containers", 0, "volumeMounts", 0, "mountPath"), "/w"),
        (("spec", "containers", 0, "command"), ["b", "a"]),
        (("spec", "containers", 0, "command"), ["a", "b", "c"]),
        (("spec", "tolerations"), []),
        (("spec", "volumes", 0, "emptyDir"), {"sizeLimit": "2Gi"}),
        (("spec", "containers", 0, "env", 0, "value"), "1.0"),
    ],
)
def test_what_differs_is_applied(path: tuple[Any, ...], value: Any) -> None:
    live = _set()
    where = live
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    assert needs_apply(_set(), _live(live))


def test_an_element_that_is_not_desired_any_more_shows_in_the_hash() -> None:
    desired = _set()
    del desired["spec"]["containers"][0]["env"][1]
    assert not needs_apply(desired, _live(_set()))
    desired["metadata"]["annotations"]["echorl.dev/hash"] = "new"
    assert needs_apply(desired, _live(_set()))


def test_a_missing_hash_is_a_difference() -> None:
    live = _set()
    del live["metadata"]["annotations"]
    assert needs_apply(_set(), _live(live))


def test_order_of_keyed_lists_is_no_matter() -> None:
    live = _set()
    live["spec"]["containers"][0]["env"].reverse()
    assert not needs_apply(_set(), _live(live))


def test_ports_of_one_number_differ_by_protocol() -> None:
    ports = [{"port": 53, "protocol": "UDP", "name": "u"}, {"port": 53, "name": "t"}]
    live = [{"port": 53, "protocol": "TCP", "name": "t"}, {"port": 53, "protocol": "UDP", "name": "u"}]
    assert not needs_apply(_set({"ports": ports}), _live(_set({"ports": live})))


def test_null_and_empty_lists_count_as_absent() -> None:
    assert not needs_apply(_set({"a": None, "b": [], "c": 1}), _live(_set({"c": 1})))
    assert needs_apply(_set({"a": {}, "c": 1}), _live(_set({"c": 1})))


def test_true_is_not_one_and_text_is_no_number() -> None:
    assert needs_apply(_set({"a": True}), _live(_set({"a": 1})))
    assert needs_apply(_set({"a": "1"}), _live(_set({"a": 1})))
    assert not needs_apply(_set({"a": 1}), _live(_set({"a": 1.0})))


def test_a_secret_cannot_be_compared() -> None:
    assert not needs_apply(_set(), b"")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1000m", "1"),
        ("1024Mi", "1073741824"),
        ("1Gi", "1073741824"),
        ("1.5", "1.5"),
        (2, "2"),
        ("1e3", "1000"),
        ("2E", "2000000000000000000"),
        ("100k", "100000"),
        (".5Ki", "512"),
    ],
)
def test_quantities(text: str | int, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "1KiB", "Gi", "one", "1 Gi", "--1"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity: found"):
        quantity(text)


KEYED = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
WORDS = st.text("abc1", min_size=1, max_size=3)
SCALARS = st.one_of(WORDS, st.integers(-5, 5), st.booleans())


def _keyed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def lists(field: str) -> st.SearchStrategy[dict[str, Any]]:
        def build(items: dict[str, dict[str, Any]]) -> dict[str, Any]:
            return {field: [{**extra, KEYED[field]: key} for key, extra in items.items()]}

        return st.dictionaries(WORDS, st.dictionaries(WORDS, values, max_size=2), min_size=1, max_size=3).map(build)

    return st.sampled_from(sorted(KEYED)).flatmap(lists)


TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(WORDS, inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3),
        _keyed(inner),
    ),
    max_leaves=12,
)
BODIES = st.dictionaries(WORDS, TREES, min_size=1, max_size=3)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all leaves."""
    if isinstance(value, dict):
        return [path for key, one in value.items() for path in _paths(one, (*here, key))]
    if isinstance(value, list):
        return [path for index, one in enumerate(value) for path in _paths(one, (*here, index))]
    return [here]


def _more(value: Any, draw: Any, field: str = "") -> Any:
    """The same with additions that the API server or others may make."""
    if isinstance(value, dict):
        grown = {key: _more(one, draw, key) for key, one in value.items()}
        extra = draw(st.dictionaries(st.text("xyz", min_size=4, max_size=5), SCALARS, max_size=2))
        return {**extra, **grown}
    if isinstance(value, list):
        grown = [_more(one, draw) for one in value]
        if field in KEYED and all(isinstance(one, dict) and isinstance(one.get(KEYED[field]), str) for one in value):
            grown += draw(st.sampled_from([[], [{KEYED[field]: "added"}]]))
            grown = draw(st.permutations(grown))
        return grown
    return value


@given(BODIES)
def test_reflexive(body: dict[str, Any]) -> None:
    assert not needs_apply({"spec": body}, json.dumps({"spec": body}).encode())


@given(BODIES, st.data())
def test_a_superset_never_needs_an_apply(body: dict[str, Any], data: st.DataObject) -> None:
    grown = _more({"spec": body}, data.draw)
    assert not needs_apply({"spec": body}, json.dumps(grown).encode())


@given(BODIES, st.data())
def test_every_leaf_that_is_changed_or_removed_needs_one(body: dict[str, Any], data: st.DataObject) -> None:
    live = copy.deepcopy({"spec": body})
    path = data.draw(st.sampled_from(_paths(live)))
    where: Any = live
    for key in path[:-1]:
        where = where[key]
    if data.draw(st.booleans()):
        where[path[-1]] = "changed"
    else:
        del where[path[-1]]
    assert needs_apply({"spec": body}, json.dumps(live).encode())
