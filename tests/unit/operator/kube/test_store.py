import pytest

from echorl_operator.kube.store import Store
from echorl_operator.observed.records import ChildRecord, Kind, Meta
from echorl_operator.observed.runs import RunKey


def child(name: str, version: int, uid: str = "u", run: str = "r", namespace: str = "ns") -> ChildRecord:
    meta = Meta(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=str(version),
        generation=1,
        run_uid=f"uid-of-{run}",
        owner_uid="",
        created_at=0.0,
        deleted_at=None,
        run=run,
    )
    return ChildRecord(Kind.SERVICE, meta, b"{}")


@pytest.fixture
def changes() -> list[RunKey]:
    return []


@pytest.fixture
def store(changes: list[RunKey]) -> Store[ChildRecord]:
    return Store(changes.append)


def test_newer_replaces_older_and_tells_the_run(store: Store[ChildRecord], changes: list[RunKey]) -> None:
    assert store.put(child("a", 5))
    assert store.put(child("a", 10))
    assert not store.put(child("a", 9)), "9 is older than 10, though not as a text"
    assert not store.put(child("a", 10))
    found = store.get("ns", "a")
    assert found is not None
    assert found.meta.resource_version == "10"
    assert changes == [RunKey("ns", "r")] * 2


def test_records_are_found_by_run(store: Store[ChildRecord]) -> None:
    for name, run in (("b", "r"), ("a", "r"), ("c", "other")):
        store.put(child(name, 1, uid=name, run=run))
    assert [one.meta.name for one in store.of_run("uid-of-r")] == ["a", "b"]
    assert store.of_run("uid-of-nobody") == []


def test_an_object_that_moves_to_another_run_tells_both(store: Store[ChildRecord], changes: list[RunKey]) -> None:
    store.put(child("a", 1, run="r"))
    store.put(child("a", 2, run="s"))
    assert set(changes) == {RunKey("ns", "r"), RunKey("ns", "s")}
    assert store.of_run("uid-of-r") == []


def test_a_removal_of_a_predecessor_leaves_the_successor(store: Store[ChildRecord]) -> None:
    store.put(child("a", 7, uid="new"))
    assert not store.remove("ns", "a", "old", 8)
    assert store.remove("ns", "a", "new", 9)
    assert len(store) == 0


def test_late_news_do_not_raise_what_we_deleted(store: Store[ChildRecord], changes: list[RunKey]) -> None:
    store.put(child("a", 5))
    assert store.bury("ns", "a", "u")
    assert not store.put(child("a", 6)), "the watch is behind our delete"
    assert store.put(child("a", 9, uid="next")), "a successor of the name is another object"
    store.remove("ns", "a", "u", 10)
    assert [one.meta.uid for one in store] == ["next"]


def test_a_list_reports_what_is_gone(store: Store[ChildRecord], changes: list[RunKey]) -> None:
    store.put(child("gone", 5, uid="1", run="x"))
    store.put(child("stays", 6, uid="2"))
    changes.clear()
    store.replace("ns", [child("stays", 6, uid="2"), child("new", 7, uid="3", run="y")], 8)
    assert [one.meta.name for one in store] == ["stays", "new"]
    assert set(changes) == {RunKey("ns", "x"), RunKey("ns", "y")}


def test_a_list_leaves_what_was_written_since(store: Store[ChildRecord]) -> None:
    store.put(child("mine", 12))
    store.replace("ns", [], 10)
    assert store.get("ns", "mine") is not None
    store.replace("ns", [], 12)
    assert store.get("ns", "mine") is None


def test_a_list_from_before_our_delete_does_not_undo_it(store: Store[ChildRecord]) -> None:
    store.put(child("a", 5))
    store.bury("ns", "a", "u")
    store.replace("ns", [child("a", 5)], 6)
    assert len(store) == 0
    store.replace("ns", [], 9)
    assert store.put(child("a", 11)), "the grave is given up once a list lacks the uid"


def test_a_list_of_one_namespace_leaves_the_others(store: Store[ChildRecord]) -> None:
    store.put(child("a", 1, namespace="one"))
    store.put(child("a", 2, namespace="two"))
    store.replace("one", [], 5)
    assert [one.meta.namespace for one in store] == ["two"]
    store.replace(None, [], 5)
    assert len(store) == 0


def test_what_went_is_known_for_a_while() -> None:
    now = [0.0]
    store: Store[ChildRecord] = Store(lambda _: None, remember_s=10, clock=lambda: now[0])
    for name in "ab":
        store.put(child(name, 1, uid=name))
        store.remove("ns", name, name, 2)
        now[0] += 6
    assert [one.meta.name for one in store.departed("uid-of-r")] == ["b"]
    store.put(child("c", 3, uid="c", run="other"))
    store.put(child("c", 4, uid="successor", run="other"))
    assert [one.meta.uid for one in store.departed("uid-of-other")] == ["c"]
    now[0] = 100
    assert store.departed("uid-of-r") == store.departed("uid-of-other") == []
    assert not store._departed
    assert not store._departures


def test_the_reply_of_a_write_may_come_after_the_news_of_the_deletion(store: Store[ChildRecord]) -> None:
    store.put(child("a", 5))
    store.remove("ns", "a", "u", 10)
    assert not store.put(child("a", 4))
    assert len(store) == 0


def test_an_object_that_lost_its_label_can_come_back(store: Store[ChildRecord]) -> None:
    store.put(child("a", 5))
    store.remove("ns", "a", "u", 6)
    assert store.put(child("a", 7))
