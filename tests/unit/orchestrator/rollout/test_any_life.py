"""Whatever happens to a run, no task is trained twice or passed over, no group half, nothing too old, and it ends.

Episodes fail in every way, engines come and go, settings are edited, the orchestrator and the gang are killed, the run
is stopped and resumed; from the deal of a task to the committed checkpoint everything is real (``imagined_run``).
"""

from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.orchestrator.imagined_run import ImaginedRun
from echorl_testing.virtual_time import run_in_virtual_time

MEMORY = Path("/dev/shm")
SOME, MANY = 50, 5000


@campaign.SAMPLED
def test_a_life_is_a_good_one(tmp_path: Path) -> None:
    for seed in campaign.chance("lives of a run").sample(range(MANY), SOME):
        live(tmp_path, seed)


@campaign.ALL
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_each_of_many_lives_is_a_good_one(tmp_path: Path, part: int) -> None:
    for seed in range(part, MANY, 10):
        live(tmp_path, seed)


def live(root: Path, seed: int) -> None:
    world = ImaginedRun(root, seed)
    try:
        run_in_virtual_time(world.live())
        world.check()
    except BaseException as error:
        error.add_note(f"life {seed}: {world.log}; {world.config.batch}")
        raise
