import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_operator.children.stored import stored
from echorl_operator.quantities import canonical, total, value

# Inputs and outputs of apimachinery's resource.Quantity.
CANONICAL = {
    "1024Mi": "1Gi",
    "1000Mi": "1000Mi",
    "1.5Gi": "1536Mi",
    "0.5Ki": "512",
    "0.1Gi": "107374182400m",
    "1023": "1023",
    "1024": "1024",
    "1000": "1k",
    "1000M": "1G",
    "2000m": "2",
    "0.5": "500m",
    "1500m": "1500m",
    "1e3": "1e3",
    "12E4": "120e3",
    "1E": "1E",
    "0": "0",
    "0Gi": "0",
    "0.1n": "1n",
    "1.0000000001": "1000000001n",
}


@pytest.mark.parametrize(("given_as", "written"), CANONICAL.items())
def test_quantities_are_written_as_the_api_server_writes_them(given_as, written):
    assert canonical(given_as) == written


def test_numbers_are_quantities():
    assert canonical(2) == "2"
    assert canonical(0.25) == "250m"


@pytest.mark.parametrize("wrong", ["", "Gi", "1 Gi", "1gi", "one", "1e", "--1", None, True, [1]])
def test_what_is_no_quantity_is_refused(wrong):
    with pytest.raises(ValueError, match="accepted is a Kubernetes quantity"):
        canonical(wrong)


@given(st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,6})?(Ki|Mi|Gi|n|u|m|k|M|G|e3|e-3)?", fullmatch=True))
def test_canonical_form_is_stable_and_loses_nothing_but_below_a_billionth(quantity):
    written = canonical(quantity)
    assert canonical(written) == written
    assert 0 <= value(written) - value(quantity) < value("1n")


def test_totals():
    assert total("500m", "2", 8) == "16500m"
    assert total("1Gi", "2Gi", 8) == "17Gi"
    assert total("0", "8Gi", 4) == "32Gi"
    assert total("2Gi", "8Gi", 0) == "2Gi"


def test_stored_form_leaves_out_what_the_api_server_leaves_out():
    template = {
        "containers": [
            {
                "name": "a",
                "env": [{"name": "EMPTY", "value": ""}, {"name": "ZERO", "value": "0"}],
                "resources": {"limits": {"cpu": 2, "memory": "2048Mi"}, "requests": {}},
                "volumeMounts": [{"name": "x", "readOnly": False}],
                "securityContext": {"allowPrivilegeEscalation": False},
                "livenessProbe": {"initialDelaySeconds": 0, "periodSeconds": 5},
                "args": [],
                "tty": False,
            }
        ],
        "volumes": [{"name": "x", "emptyDir": {}}, {"name": "y", "emptyDir": {"sizeLimit": "1024Ki"}}],
        "nodeSelector": {},
        "terminationGracePeriodSeconds": 0,
        "priorityClassName": None,
    }
    assert stored(template) == {
        "containers": [
            {
                "name": "a",
                "env": [{"name": "EMPTY"}, {"name": "ZERO", "value": "0"}],
                "resources": {"limits": {"cpu": "2", "memory": "2Gi"}},
                "volumeMounts": [{"name": "x"}],
                "securityContext": {"allowPrivilegeEscalation": False},
                "livenessProbe": {"periodSeconds": 5},
            }
        ],
        "volumes": [{"name": "x", "emptyDir": {}}, {"name": "y", "emptyDir": {"sizeLimit": "1Mi"}}],
        "terminationGracePeriodSeconds": 0,
    }


def test_a_wrong_quantity_is_named():
    with pytest.raises(ValueError, match=r"limits\.memory: found 'much'"):
        stored({"limits": {"memory": "much"}})
