"""Who waits for a sandbox, as long as that is heard, and what was lost."""

import msgspec

from echorl_core.wire.run_state import SandboxesState, SandboxWaits
from echorl_orchestrator.sandboxes.contract import SandboxLoss
from echorl_orchestrator.sandboxes.ledger import FORGOTTEN_AFTER_S, SandboxLedger


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def counts(ledger: SandboxLedger) -> dict[str, int]:
    return {waits.why: waits.count for waits in ledger.state().waiting}


def test_who_waits_is_counted_once_and_by_the_newest_words() -> None:
    ledger = SandboxLedger(Clock())
    ledger.waits("one.a", "quota", "1 of 2")
    ledger.waits("two.a", "quota", "2 of 2")
    ledger.waits("one.a", "quota", "used up")
    ledger.waits("two.b", "node", "no room")
    assert ledger.state() == SandboxesState(
        waiting=[
            SandboxWaits(why="node", count=1, reason="no room"),
            SandboxWaits(why="quota", count=2, reason="used up"),
        ]
    )


def test_who_has_it_or_lost_it_waits_no_more() -> None:
    ledger = SandboxLedger(Clock())
    for key in "abc":
        ledger.waits(key, "quota", "")
    ledger.settled("a")
    ledger.settled("b", SandboxLoss.REFUSED)
    ledger.settled("z", SandboxLoss.EVICTED)
    assert counts(ledger) == {"quota": 1}
    assert ledger.state().lost == {"evicted": 1, "refused": 1}


def test_who_says_nothing_any_more_is_forgotten() -> None:
    clock = Clock()
    ledger = SandboxLedger(clock)
    ledger.waits("a", "quota", "")
    ledger.waits("b", "quota", "")
    clock.now = 30.0
    ledger.waits("a", "quota", "")
    clock.now = FORGOTTEN_AFTER_S + 1
    assert counts(ledger) == {"quota": 1}
    clock.now += 30.0
    assert counts(ledger) == {}


def test_however_many_wait_it_stays_small() -> None:
    ledger = SandboxLedger(Clock())
    for number in range(5000):
        ledger.waits(str(number), "quota", "x" * 1000)
    assert 0 < counts(ledger)["quota"] < 5000
    assert len(msgspec.json.encode(ledger.state())) < 2000
