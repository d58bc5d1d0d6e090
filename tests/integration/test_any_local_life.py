"""Whatever processes, people and signals do, a supervisor comes to an end that its exit code and state tell truly.

Real supervisors and real processes, whose ends are drawn: codes, signals, silence; stops, kills, resumes with another
policy. After each life nothing of it runs.
"""

import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from echorl_cli.local.proctable import stat_of
from echorl_core.names import NEVER_RESTARTED
from echorl_testing import campaign
from echorl_testing.local import fake_local_run
from echorl_testing.local.run_world import RunWorld
from echorl_testing.ports import free_ports
from echorl_testing.warm import Program

pytestmark = pytest.mark.faults

SUPPORT = str(Path(fake_local_run.__file__).parents[2])
DEADLINE_S = 120.0
LIVES = list(range(100))
LIMITS = {
    "settle": 0.05,
    "health_interval": 0.1,
    "engine_unhealthy": 2.0,
    "unhealthy": 3.0,
    "no_step": 6.0,
    "start": 20.0,
    "part": 2.0,
    "engine_grace": 0.3,
    "grace": 0.3,
}
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDS = {0: "Succeeded", 7: "Suspended", **{128 + number: "Suspended" for number in STOPS}}


@dataclass
class Life:
    """One supervisor's."""

    policy: dict[str, Any]
    first: int
    """How many processes there were before it."""
    signals: list[int] = field(default_factory=list)
    code: int | None = None


def live(number: int, folder: Path) -> None:
    """A run's lives, until one has ended by itself or a third has."""
    chance = random.Random(number)
    engines, ranks = chance.choice([(1, 1), (1, 2), (2, 2)])
    ports = free_ports(1 + engines)
    root = folder / "run"
    root.mkdir()
    with RunWorld(folder / "world", ports, chance, max_steps=chance.choice([5, 30])) as world:
        for _ in range(3):
            policy = {"max_restarts": chance.choice([0, 1, 4]), "backoff_s": 0.0, "reset_after_steps": 10_000}
            life = Life(policy, len(world.launches))
            chosen = {
                "ports": ports,
                "engines": engines,
                "ranks": ranks,
                "max_steps": world.max_steps,
                "restart_policy": policy,
                "limits": LIMITS,
            }
            world.stop_asked = False
            supervise(world, life, root, chosen, chance)
            assert world.violations == []
            judge(world, life, root, engines=engines)
            if life.code != -signal.SIGKILL:
                return


def supervise(world: RunWorld, life: Life, root: Path, chosen: dict[str, Any], chance: random.Random) -> None:
    """Start a supervisor, do to it what is drawn, and wait for its end."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")]),
        "SCRIPTED_ROLES": str(world.folder),
    }
    output = root.with_name(f"output.{life.first}.log")
    begun = time.monotonic()
    supervisor = Program(
        "echorl_testing.local.fake_local_run", [root, json.dumps(chosen)], environment=variables, output=output
    )
    try:
        planned = chance.choice([[], [], [chance.choice(STOPS)], [chance.choice(STOPS)] * 2, [signal.SIGKILL]])
        for number in planned:
            # Only a supervisor that has begun knows what a signal asks for.
            while supervisor.returncode is None and len(world.launches) == life.first:
                assert time.monotonic() < begun + DEADLINE_S, output.read_text()
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 1.0))
            life.signals.append(number)
            supervisor.send_signal(number)
        life.code = supervisor.ended(DEADLINE_S)
    except TimeoutError:
        raise AssertionError(f"no end within {DEADLINE_S:.0f} s:\n{output.read_text()}") from None
    finally:
        supervisor.kill()
    assert "Traceback" not in output.read_text(), output.read_text()


def judge(world: RunWorld, life: Life, root: Path, *, engines: int) -> None:
    """Whether the life ended as it may."""
    until = time.monotonic() + 30
    while left := [pid for pid in world.pids() if stat_of(pid) is not None]:
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.02)
    mine = world.launches[life.first :]
    counts = {role: sum(one.name.startswith(role) for one in mine) for role in ("inference", "orchestrator")}
    ranks = sum(one.name == "trainer-0" for one in mine)
    limit = life.policy["max_restarts"]
    assert counts["inference"] <= engines + limit
    assert counts["orchestrator"] <= 1 + 2 * limit
    assert ranks <= 1 + 2 * limit
    state = json.loads((root / "state.json").read_text())
    code, told = life.code, {one.told for one in mine}
    if code == -signal.SIGKILL:
        assert signal.SIGKILL in life.signals
        return
    assert code is not None
    assert (state["exit_code"], state["phase"]) == (code, ENDS.get(code, "Failed")), state["reason"]
    if code == 0:
        assert world.step == world.max_steps or 0 in told
    elif code == 7:
        assert life.signals or 7 in told
    elif code in NEVER_RESTARTED:
        assert code in told
    elif code > 128:
        assert code - 128 in life.signals
    else:
        assert code == 1
        assert "are used up" in state["reason"]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("number", campaign.campaign_params("local lives", LIVES, 3))
def test_a_life_ends_as_it_may(number: int, tmp_path: Path) -> None:
    live(number, tmp_path)
