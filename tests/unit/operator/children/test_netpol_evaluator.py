"""The evaluator that the network tests rest on, on policies of the API's documentation."""

import pytest

from echorl_testing.kube.netpol import Peer, allowed

DB = Peer("db", "default", {"role": "db"}, ip="10.1.0.1")
WEB = Peer("web", "default", {"role": "frontend"}, ip="10.1.0.2")
OTHER = Peer("other", "other", {"role": "frontend"}, ip="10.1.0.3")
NEAR = Peer("near", ip="172.17.0.5")
EXCEPTED = Peer("excepted", ip="172.17.1.5")


def policy(spec, namespace="default"):
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {"matchLabels": {"role": "db"}}, **spec}}


def ingress(*rules):
    return policy({"policyTypes": ["Ingress"], "ingress": list(rules)})


def test_a_pod_that_no_policy_selects_is_open():
    assert allowed([ingress()], DB, WEB, 80)
    assert not allowed([ingress()], WEB, DB, 80)
    assert allowed([policy({"policyTypes": ["Ingress"]}, namespace="other")], WEB, DB, 80)


def test_rules_add_up():
    first, second = ingress({"ports": [{"port": 1}]}), ingress({"ports": [{"port": 2}]})
    assert [allowed([first, second], WEB, DB, port) for port in (1, 2, 3)] == [True, True, False]


def test_peers_in_one_entry_and_peers_in_two():
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}
    pods = {"podSelector": {"matchLabels": {"role": "frontend"}}}
    both = [ingress({"from": [{**namespace, **pods}]})]
    assert (allowed(both, OTHER, DB, 80), allowed(both, WEB, DB, 80)) == (True, False)
    either = [ingress({"from": [namespace, pods]})]
    assert (allowed(either, OTHER, DB, 80), allowed(either, WEB, DB, 80)) == (True, True)
    assert not allowed([ingress({"from": [pods]})], OTHER, DB, 80)


def test_blocks_of_addresses():
    rule = {"from": [{"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}}]}
    assert allowed([ingress(rule)], NEAR, DB, 80)
    assert not allowed([ingress(rule)], EXCEPTED, DB, 80)


def test_port_ranges_and_protocols():
    rules = [ingress({"ports": [{"protocol": "UDP", "port": 5, "endPort": 7}]})]
    assert [allowed(rules, WEB, DB, port, "UDP") for port in (4, 5, 7, 8)] == [False, True, True, False]
    assert not allowed(rules, WEB, DB, 5)


def test_both_ends_must_allow():
    egress = policy({"policyTypes": ["Egress"], "egress": [{"ports": [{"port": 1}]}]})
    assert allowed([egress], DB, WEB, 1)
    closed = {**egress, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    assert not allowed([egress, closed], DB, WEB, 1)


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [("In", ["db"], True), ("NotIn", ["db"], False), ("Exists", None, True), ("DoesNotExist", None, False)],
)
def test_expressions(operator, values, selected):
    expression = {"key": "role", "operator": operator, **({"values": values} if values else {})}
    closed = policy({"podSelector": {"matchExpressions": [expression]}, "policyTypes": ["Ingress"]})
    assert allowed([closed], WEB, DB, 1) is not selected
