"""Workers run code of the environment's author as the orchestrator's user: the run's token is not theirs to have."""

from pathlib import Path

from echorl_core import names
from echorl_testing.orchestrator.orchestrator_run import TOKEN, Run
from echorl_testing.waiting import until


def workers(parent: int) -> list[Path]:
    """Folders in /proc of a process's children that load environments."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = [Path("/proc") / child for child in children]
    return [one for one in found if b"echorl_orchestrator.workers.process" in (one / "cmdline").read_bytes()]


async def test_a_worker_does_not_inherit_the_runs_token(run: Run) -> None:
    run.configure()
    async with run.orchestrator() as process:
        await until(lambda: workers(process.pid))
        given = (workers(process.pid)[0] / "environ").read_bytes()
    assert b"PATH=" in given
    assert TOKEN.encode() not in given
    assert names.ENV_ADMIN_TOKEN.encode() not in given
