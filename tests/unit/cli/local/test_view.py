import io

import msgspec
import pytest
from rich.console import Console

from echorl_cli.local.eta import Eta, clock
from echorl_cli.local.outcome import Snapshot
from echorl_cli.local.view import PlainView, render, step_line
from echorl_core.names import Phase
from echorl_core.wire.run_state import RunState

STATE = {
    "uid": "u",
    "attempt": 2,
    "phase": "Running",
    "step": 12,
    "max_steps": 48,
    "waiting_for": "the trainer to train step 13",
    "policy": {"trained": 12, "served": {"min": 11, "max": 12}, "staleness_max": 1},
    "checkpoint": {"step": 10, "committed": [5, 10]},
    "reward": 0.4125,
    "env_nll": 1.5,
    "engines": [
        {"name": "127.0.0.1:20001", "state": "serving", "version": 12},
        {"name": "127.0.0.1:20002", "state": "starting", "version": None},
    ],
    "rates": {"sampled_tokens_per_s": 3456.7, "trained_tokens_per_s": 2100.0},
    "episodes": {"running": 32, "finished": 768, "failed": 2},
}


def state(**changed) -> RunState:
    return msgspec.convert({**STATE, **changed}, RunState)


def snapshot(**changed) -> Snapshot:
    fields = {
        "name": "quickstart",
        "phase": Phase.RUNNING,
        "reason": "",
        "attempt": 2,
        "max_steps": 48,
        "elapsed_s": 65.0,
        "restarts": {"trainer": 1, "inference": 1},
        "state": state(),
    }
    return Snapshot(**{**fields, **changed})


def drawn(shown: Snapshot, eta_s: float | None) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=90, color_system=None, legacy_windows=False).print(render(shown, eta_s))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_live_view_of_a_running_run() -> None:
    assert drawn(snapshot(), 195.0) == [
        "╭─ quickstart: Running, attempt 2 ───────────────────────────────────────────────────────╮",
        "│ step 12/48 ━━━━━━━━━━━━╸                                       1:05 elapsed, 3:15 left │",
        "│ reward         0.412                                                                   │",
        "│ env-token NLL  1.500 nats                                                              │",
        "│ sampled        3,457 tokens/s                                                          │",
        "│ trained        2,100 tokens/s                                                          │",
        "│ staleness      at most 1                                                               │",
        "│ policy         version 12                                                              │",
        "│ engines        127.0.0.1:20001 v12 (serving)                                           │",
        "│                127.0.0.1:20002 no version (starting)                                   │",
        "│ episodes       32 running, 768 finished, 2 failed                                      │",
        "│ checkpoint     step 10                                                                 │",
        "│ restarts       2 (inference 1, trainer 1)                                              │",
        "│ waits for      the trainer to train step 13                                            │",
        "╰────────────────────────────────────────────────────────────────────────────────────────╯",
    ]


def test_before_the_first_answer_there_are_dashes_and_what_the_supervisor_waits_for() -> None:
    shown = snapshot(phase=Phase.STARTING, reason="waiting for engines", state=None, restarts={})
    text = "\n".join(drawn(shown, None))
    assert "step 0/48" in text
    assert "1:05 elapsed, - left" in text
    assert "waits for      waiting for engines" in text


def test_a_state_that_tells_nothing_can_be_drawn() -> None:
    empty = RunState(uid="u", attempt=2, phase=Phase.STARTING)
    assert "reward         -" in "\n".join(drawn(snapshot(state=empty), None))
    assert step_line(snapshot(state=empty), None).startswith("step None/48  reward -")


def test_plain_lines_are_one_per_step_event_and_phase() -> None:
    file = io.StringIO()
    view = PlainView(Console(file=file, width=80, color_system=None))
    view.show(snapshot(phase=Phase.PREPARING, reason="choosing", state=None, elapsed_s=1.0))
    view.show(snapshot(elapsed_s=60.0))
    view.show(snapshot(elapsed_s=61.0))
    view.event("inference-0 ended with code 1 (crash)")
    view.show(snapshot(state=state(step=13), elapsed_s=65.0))
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["[0:01] Preparing, attempt 2: choosing", "[1:00] Running, attempt 2"]
    assert lines[2] == (
        "step 12/48  reward 0.412  env_nll 1.500  sampled 3457 tok/s  trained 2100 tok/s  "
        "engines v11-v12  staleness 1  1:00 elapsed  - left"
    )
    assert lines[3] == "inference-0 ended with code 1 (crash)"
    assert lines[4].startswith("step 13/48")
    assert lines[4].endswith("1:05 elapsed  2:55 left")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_pace_looks_at_the_last_steps_and_forgets_at_a_step_back() -> None:
    eta = Eta()
    eta.note(0, 0.0)
    assert eta.eta_s(10, 0.0) is None
    eta.note(2, 20.0)
    eta.note(2, 25.0)
    assert eta.eta_s(10, 25.0) == 75.0
    eta.note(1, 30.0)
    assert eta.eta_s(10, 30.0) is None
