"""Pods of a gang whose ranks start again together, and pods in the place of lost ones."""

import signal
from pathlib import Path

import pytest

from echorl_core.config import MemoryConfig
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_core.termination_message import TerminationMessage
from echorl_testing.ports import free_port
from echorl_testing.trainer.pod_process import ScriptedPod
from echorl_testing.trainer.trainer_processes import trainer_config


def gang_of_two(folder: Path, *scripts: str) -> list[tuple[int, TerminationMessage]]:
    port = free_port()
    pods = [ScriptedPod(folder, script, settle_s=0.1, gang=(index, 2, port)) for index, script in enumerate(scripts)]
    return [pod.ended() for pod in pods]


FAILS = "hold(4); wait_for('up_1'); os.kill(os.getpid(), signal.SIGKILL) if not restarts else None"
HANGS = "done(f'up_{rank}'); signal.pause() if not restarts else None"
"""As ranks do that wait for one which is gone."""


@pytest.mark.parametrize("failing", [0, 1])
def test_pods_whose_ranks_all_hold_a_step_start_them_again_together(tmp_path: Path, failing: int) -> None:
    scripts = [FAILS.replace("up_1", f"up_{1 - failing}"), f"hold(3); hold(4); {HANGS}"]
    ended = gang_of_two(tmp_path, *(scripts if failing == 0 else reversed(scripts)))
    assert [(code, words.message) for code, words in ended] == [(0, "1 ranks finished")] * 2


def test_pods_that_hold_no_step_together_end_and_tell_the_cause_from_what_followed(tmp_path: Path) -> None:
    (first, cause), (second, followed) = gang_of_two(tmp_path, FAILS, f"hold(3); {HANGS}")
    assert (first, cause.message) == (128 + signal.SIGKILL, "rank 0 was ended by SIGKILL without a word")
    assert (second, followed.message) == (ExitCode.CRASH, "a rank of another pod had failed")


KEEPS = """
slot, note = slots_from(os.environ)[0], mirror_note_from(os.environ)
if restarts:
    held = next(one for one in slots_from(os.environ) if one.step == 4)
    (folder / f"resumed_{rank}_{restarts}").write_bytes(held.record())
    note.want(4)
else:
    slot.seal(4, f"of rank {rank}".encode(), HEAD_BYTES)
    note.want(4)
while note.done != 4:
    time.sleep(0.01)
done(f"mirrored_{rank}_{restarts}")
if restarts < 4:
    signal.pause()
"""
"""Ranks that hold step 4 until they are ended, four times."""


def test_others_take_the_place_of_lost_pods_with_what_their_neighbours_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, ports = tmp_path / "trainer.json", [free_port() for _ in range(3)]
    memory = MemoryConfig(limit_bytes=2**20, mirror=True)
    trainer_config(RunDirectory(tmp_path), tmp_path, memory=memory, publish_host="127.0.0.1").dump(config)
    variables = {
        "CONFIG": str(config),
        "MASTER_ADDR": "127.0.0.1",
        "ECHORL_GANG_PORT": str(ports[0]),
        "ECHORL_GANG_MEMBERS": ",".join(f"127.0.0.1:{port}" for port in ports),
        "ECHORL_ADMIN_TOKEN": "token",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    pods = [ScriptedPod(tmp_path, KEEPS, gang=(index, 3, ports[0])) for index in range(3)]
    # One is killed whole; then the one after it is told to end, which by then holds what that one came back with; then
    # the first one, which decides for the gang, is lost in both ways.
    for restarts, (lost, is_killed) in enumerate(((1, True), (2, False), (0, True), (0, False))):
        for index, pod in enumerate(pods):
            pod.wait_for(f"mirrored_{index}_{restarts}")
        if is_killed:
            pods[lost].kill()
        else:
            pods[lost].process.terminate()
            assert pods[lost].process.wait(60) == 143
        pods[lost] = ScriptedPod(tmp_path, KEEPS, gang=(lost, 3, ports[0]))
    assert [pod.ended()[0] for pod in pods] == [0, 0, 0]
    for restarts in range(1, 5):
        assert [(tmp_path / f"resumed_{rank}_{restarts}").read_text() for rank in range(3)] == [
            f"of rank {rank}" for rank in range(3)
        ]
