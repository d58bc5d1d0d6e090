"""The size of an elastic gang, decided in imagined clusters whose nodes come and go."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_operator.observed.memory import GangSize
from echorl_operator.plan.elasticity import HOLD_S, LONGEST_PAUSE_S, Places, grown, resized, spare_pods

AFTER_S = 300.0
BEGUN = 1_000_000.0
WHOLE = GangSize(pods=4, replicas=4, since=int(BEGUN))
SIZES = (4, 3, 2)


def places(gang: int, *, at: float = 0.0, waits: float | None = None, spares: int = 0) -> Places:
    """At ``at`` seconds after the beginning, with a pod that has waited for ``waits`` of them."""
    return Places(BEGUN + at, gang, None if waits is None else BEGUN + at - waits, spares)


def test_a_gang_waits_for_its_nodes_before_it_is_made_smaller() -> None:
    assert resized(WHOLE, SIZES, places(3, at=299, waits=299), AFTER_S) == WHOLE
    made = resized(WHOLE, SIZES, places(3, at=300, waits=300), AFTER_S)
    assert made == GangSize(3, 4, int(BEGUN) + 300, tries=1, spares_from=int(BEGUN) + 600)


@pytest.mark.parametrize(("sizes", "placed", "pods"), [(SIZES, 1, 4), (SIZES, 2, 2), ((4, 2), 3, 2), ((4,), 3, 4)])
def test_it_is_as_large_as_places_and_its_layout_allow(sizes: Sequence[int], placed: int, pods: int) -> None:
    assert resized(WHOLE, sizes, places(placed, at=900, waits=900), AFTER_S).pods == pods


def test_it_grows_once_spare_pods_hold_all_that_is_missing() -> None:
    two = GangSize(2, 4, int(BEGUN), tries=1, spares_from=int(BEGUN) + 300)
    assert [spare_pods(two, BEGUN + at) for at in (299, 300)] == [0, 2]
    asked = resized(two, SIZES, places(2, at=400, spares=2), AFTER_S)
    assert asked.grows
    assert asked.pods == 2
    made = grown(asked, SIZES, 2, BEGUN + 450, AFTER_S)
    assert (made.pods, made.tries) == (4, 1)
    assert grown(asked, SIZES, 0, BEGUN + 450, AFTER_S).pods == 2, "the places are lost while it saves"


def test_places_that_are_too_few_are_held_for_a_while_and_then_used_or_given_up() -> None:
    two = GangSize(2, 4, int(BEGUN), tries=1)
    held = resized(two, SIZES, places(2, at=10, spares=1), AFTER_S)
    assert held == replace(two, held_since=int(BEGUN) + 10)
    assert resized(held, SIZES, places(2, at=9 + HOLD_S, spares=1), AFTER_S) == held
    assert resized(held, SIZES, places(2, at=10 + HOLD_S, spares=1), AFTER_S).grows
    given_up = resized(held, (4, 2), places(2, at=10 + HOLD_S, spares=1), AFTER_S)
    assert (given_up.grows, given_up.held_since, given_up.tries) == (False, 0, 2)
    assert spare_pods(given_up, BEGUN + 10 + HOLD_S) == 0
    assert given_up.spares_from == int(BEGUN + 10 + HOLD_S + 2 * AFTER_S)


def test_looks_for_places_that_are_of_no_use_come_ever_later() -> None:
    size, pauses = WHOLE, []
    for _ in range(6):
        size = resized(replace(size, pods=4), SIZES, places(3, at=1000, waits=900), AFTER_S)
        pauses.append(size.spares_from - BEGUN - 1000)
    assert pauses == [300, 600, 1200, 2400, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


@dataclass
class Imagined:
    """A cluster with ``nodes`` places, as a gang of this run sees it. Seconds pass ten at a time."""

    sizes: Sequence[int]
    nodes: int
    size: GangSize = WHOLE
    now: float = BEGUN
    trains: bool = True
    let_through: float = BEGUN
    spares: int = 0
    stopped_for: list[int] = field(default_factory=list)
    """Pods of the gang and spare pods with a place, whenever one that trained was asked to end."""
    sizes_seen: list[int] = field(default_factory=list)

    def pass_(self, nodes: int) -> None:
        self.now, self.nodes = self.now + 10, nodes
        placed = min(self.size.pods, nodes)
        if placed < self.size.pods:
            # A pod was lost, or the attempt has never had its nodes: nobody trains.
            if self.trains:
                self.trains, self.let_through, self.size = False, self.now, replace(self.size, grows=False)
        else:
            self.trains = True
        wanted = spare_pods(self.size, self.now) if self.trains and self.size.pods < self.size.replicas else 0
        self.spares = min(wanted, nodes - placed)
        waits = None if self.trains else self.let_through
        before = self.size
        self.size = resized(before, self.sizes, Places(self.now, placed, waits, self.spares), AFTER_S)
        if self.size.pods < before.pods:
            self.let_through, self.trains = self.now, False
        elif self.size.grows:
            self.stopped_for.append(placed + self.spares - before.pods)
            self.size = replace(grown(self.size, self.sizes, self.spares, self.now, AFTER_S), grows=False, held_since=0)
            self.let_through, self.trains = self.now, False
        self.sizes_seen.append(self.size.pods)


LAYOUTS = st.sampled_from([(4, 3, 2, 1), (4, 2), (4, 2, 1), (4, 3)])


@given(LAYOUTS, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 90)), max_size=12))
def test_in_any_cluster_it_has_a_size_of_its_layout_and_stops_for_nothing_but_places(
    sizes: tuple[int, ...], weather: list[tuple[int, int]]
) -> None:
    cluster = Imagined(sizes, nodes=4)
    for nodes, passes in weather:
        for _ in range(passes):
            cluster.pass_(nodes)
    assert set(cluster.sizes_seen) <= set(sizes)
    assert all(more > 0 for more in cluster.stopped_for)


@given(LAYOUTS, st.lists(st.integers(0, 6), max_size=60))
def test_once_nodes_stay_it_trains_with_all_of_them(sizes: tuple[int, ...], weather: list[int]) -> None:
    cluster = Imagined(sizes, nodes=4)
    for nodes in weather:
        cluster.pass_(nodes)
    for _ in range(int(2 * LONGEST_PAUSE_S / 10) + 200):
        cluster.pass_(4)
    assert (cluster.size.pods, cluster.trains) == (4, True)


def test_where_nodes_come_and_go_a_gang_that_trains_is_stopped_seldom() -> None:
    cluster = Imagined((4, 3, 2), nodes=4)
    for minute in range(24 * 60):
        for _ in range(6):
            # A node that is there for half a minute in every two, longer than a spare pod needs to see it.
            cluster.pass_(4 if minute % 2 and _ < 3 else 3)
    assert len(cluster.stopped_for) <= 26, "about once an hour"
