from echorl_operator.diagnosis.capacity import Node, rooms, words

GPU = "nvidia.com/gpu"


def node(name: str, gpus: str = "8", schedulable: bool = True) -> Node:
    return Node(name, {"cpu": "64", GPU: gpus} if gpus else {"cpu": "64"}, schedulable)


def said(wanted: str, nodes: list[Node], used: dict[str, list[str]]) -> str:
    return words(GPU, wanted, rooms(GPU, nodes, used))


def test_what_is_free_is_summed_over_nodes_that_have_it() -> None:
    nodes = [node("a"), node("b"), node("c", gpus="")]
    assert said("8", nodes, {"a": ["4", "3"], "b": ["6"]}) == "8 nvidia.com/gpu wanted, 3 free on 2 nodes"


def test_enough_in_all_is_not_enough_on_one() -> None:
    nodes = [node("a"), node("b")]
    assert said("8", nodes, {"a": ["4"], "b": ["2"]}) == (
        "8 nvidia.com/gpu wanted, 10 free on 2 nodes, at most 6 on one"
    )


def test_nodes_that_take_no_pods_have_nothing_free() -> None:
    assert said("1", [node("a", schedulable=False)], {}) == (
        "1 nvidia.com/gpu wanted, and no node that takes pods has any"
    )
    assert said("16", [node("a"), node("b")], {}) == "16 nvidia.com/gpu wanted, and no node has more than 8"


def test_other_resources_in_their_units() -> None:
    assert words("memory", "64Gi", rooms("memory", [Node("a", {"memory": "96Gi"}, True)], {"a": ["40Gi"]})) == (
        "64.0 GiB memory wanted, 56.0 GiB free on 1 node"
    )
    assert words("cpu", "1500m", rooms("cpu", [Node("a", {"cpu": "4"}, True)], {"a": ["3"]})) == (
        "1.5 cpu wanted, 1 free on 1 node"
    )
