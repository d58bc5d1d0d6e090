from dataclasses import dataclass, field

import pytest

from echorl_operator.watchdog import Vitals, Watchdog, WatchdogLimits


@dataclass
class Stream:
    name: str
    heard_at: float = 0.0

    def age(self, now: float | None = None) -> float:
        assert now is not None
        return now - self.heard_at


@dataclass
class Body:
    now: float = 0.0
    streams: list[Stream] = field(default_factory=lambda: [Stream("pods in ns"), Stream("runs in ns")])
    synced: bool = True
    down: bool = False
    reachable_since: float = 0.0
    pass_s: float = 0.0
    election_round: float | None = None

    def watchdog(self) -> Watchdog:
        vitals = Vitals(
            streams=lambda: self.streams,
            synced=lambda: self.synced,
            api_down=lambda: self.down,
            reachable_since=lambda: self.reachable_since,
            longest_pass_s=lambda: self.pass_s,
            election_round=lambda: self.election_round,
        )
        return Watchdog(vitals, WatchdogLimits(silence_s=150, pass_s=300, election_s=60), clock=lambda: self.now)


def test_a_healthy_process_is_alive_and_ready() -> None:
    body = Body(now=149)
    assert body.watchdog().not_alive() is None
    assert body.watchdog().not_ready() is None


def test_a_silent_stream_is_fatal_while_the_server_answers() -> None:
    body = Body(now=151)
    body.streams[0].heard_at = 151
    assert body.watchdog().not_alive() == "nothing heard of runs in ns for 151 s; the limit is 150"
    assert body.watchdog().not_ready() == body.watchdog().not_alive()


def test_an_outage_alone_is_no_reason_to_die() -> None:
    body = Body(now=10_000, down=True)
    assert body.watchdog().not_alive() is None
    assert body.watchdog().not_ready() == "the API server does not answer"


def test_after_an_outage_streams_get_their_time_to_come_back() -> None:
    body = Body(now=10_100, reachable_since=10_000)
    assert body.watchdog().not_alive() is None
    body.now = 10_151
    assert body.watchdog().not_alive() is not None


@pytest.mark.parametrize("down", [True, False])
def test_a_pass_that_never_ends_is_fatal(down: bool) -> None:
    body = Body(pass_s=301, down=down)
    assert body.watchdog().not_alive() == "a pass has taken 301 s; the limit is 300"


def test_a_dead_election_is_fatal() -> None:
    body = Body(now=100, election_round=30)
    assert body.watchdog().not_alive() == "the election has not tried for 70 s; the limit is 60"
    body.election_round = 90
    assert body.watchdog().not_alive() is None


def test_not_ready_before_everything_is_listed() -> None:
    assert Body(synced=False).watchdog().not_ready() == "not everything has been listed yet"
