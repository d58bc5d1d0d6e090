"""A pod's place in its gang, and the variables and config that tell it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from echorl_core.config import MemoryConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_core.termination_message import read
from echorl_testing.trainer.trainer_processes import trainer_config
from echorl_trainer.__main__ import read_input
from echorl_trainer.in_place_http import restarts_in_place
from echorl_trainer.pod import main
from echorl_trainer.pod_layout import Layout

VARIABLES = {
    "ECHORL_PODS": "4",
    "ECHORL_POD_INDEX": "2",
    "ECHORL_RANKS_PER_POD": "8",
    "MASTER_ADDR": "run-trainer-0.run-trainer",
    "MASTER_PORT": "29500",
}
IDENTITY = {"ECHORL_RUN_NAME": "n", "ECHORL_RUN_UID": "u", "ECHORL_ATTEMPT": "2", "ECHORL_ADMIN_TOKEN": "t"}


def test_ranks_are_numbered_through_the_pods() -> None:
    layout = Layout.from_environment(VARIABLES)
    assert layout.environment(3) == {"RANK": "19", "LOCAL_RANK": "3", "WORLD_SIZE": "32"}
    ranks = [Layout(4, index, 8).rank(local) for index in range(4) for local in range(8)]
    assert ranks == list(range(32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ECHORL_PODS": ""}, "ECHORL_PODS: found '', accepted is an integer from 1"),
        ({"ECHORL_RANKS_PER_POD": "0"}, "ECHORL_RANKS_PER_POD: found '0'"),
        ({"ECHORL_POD_INDEX": "-1"}, "ECHORL_POD_INDEX: found '-1'"),
        ({"MASTER_PORT": ""}, "missing: MASTER_PORT"),
    ],
)
def test_a_wrong_layout_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.from_environment({**VARIABLES, **changes})


def test_a_gang_of_one_needs_no_address() -> None:
    one = {"ECHORL_PODS": "1", "ECHORL_POD_INDEX": "0", "ECHORL_RANKS_PER_POD": "1"}
    assert Layout.from_environment(one).world_size == 1


def test_a_pod_without_its_variables_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "log"
    monkeypatch.setenv("ECHORL_TERMINATION_LOG", str(file))
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    assert main(["--config", "nowhere.json"]) == ExitCode.BAD_INPUT
    words = read(file.read_bytes())
    assert words is not None
    assert words.message.startswith("ECHORL_PODS: found ''")


@pytest.mark.parametrize(
    ("publish", "advertise", "variable", "found"),
    [
        ("10.0.0.1", None, None, None),
        ("0.0.0.0", "trainer-0", None, "trainer-0"),
        ("0.0.0.0", "trainer-0", "10.0.0.7", "10.0.0.7"),
        ("0.0.0.0", None, "10.0.0.7", "10.0.0.7"),
    ],
)
def test_the_pods_own_name_overrides_the_configs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: str,
    advertise: str | None,
    variable: str | None,
    found: str | None,
) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ECHORL_ADVERTISE_HOST", raising=False)
    if variable is not None:
        monkeypatch.setenv("ECHORL_ADVERTISE_HOST", variable)
    config = trainer_config(RunDirectory(tmp_path), tmp_path, publish_host=publish, advertise_host=advertise)
    config.dump(tmp_path / "trainer.json")
    read_config, *_ = read_input(["--config", str(tmp_path / "trainer.json")])
    assert read_config.advertise_host == found


def test_an_address_that_means_any_is_told_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHORL_ADVERTISE_HOST", "0.0.0.0")
    trainer_config(RunDirectory(tmp_path), tmp_path, publish_host="0.0.0.0").dump(tmp_path / "trainer.json")
    with pytest.raises(ValueError, match=r"advertise_host: .* found '0\.0\.0\.0'"):
        read_input(["--config", str(tmp_path / "trainer.json")])


@pytest.mark.parametrize("members", ["", "host", "host:1", "host:1,:2", "host:1,host:port", "a:1,b:2,c:3"])
def test_pods_that_hold_copies_for_each_other_need_an_address_of_each(tmp_path: Path, members: str) -> None:
    config = tmp_path / "trainer.json"
    memory = MemoryConfig(limit_bytes=2**30, mirror=True)
    trainer_config(RunDirectory(tmp_path), tmp_path, memory=memory).dump(config)
    environ = {"MASTER_ADDR": "127.0.0.1", "ECHORL_GANG_PORT": "1", "ECHORL_ADMIN_TOKEN": "token"}
    with pytest.raises(
        ValueError, match=f"ECHORL_GANG_MEMBERS: found '{members}', accepted is host:port of each of 2 pods"
    ):
        restarts_in_place(
            config,
            environ | {"ECHORL_GANG_MEMBERS": members},
            RunIdentity("n", "u", 2),
            pods=2,
            pod=1,
            ranks=range(1, 2),
        )


@pytest.mark.parametrize("port", ["", "no port", "65536"])
def test_pods_that_restart_in_place_together_need_a_port_to_agree_at(tmp_path: Path, port: str) -> None:
    memory = MemoryConfig(limit_bytes=2**30)
    config = tmp_path / "trainer.json"
    trainer_config(RunDirectory(tmp_path), tmp_path, memory=memory).dump(config)
    identity, environ = RunIdentity("n", "u", 2), {"MASTER_ADDR": "127.0.0.1", "ECHORL_GANG_PORT": port}
    with pytest.raises(ValueError, match=f"ECHORL_GANG_PORT: found '{port}', accepted is a port"):
        restarts_in_place(config, environ, identity, pods=2, pod=0, ranks=range(1))
    with pytest.raises(ValueError, match="ECHORL_ADMIN_TOKEN"):
        restarts_in_place(config, environ | {"ECHORL_GANG_PORT": "1"}, identity, pods=2, pod=1, ranks=range(1, 2))
    assert restarts_in_place(config, {}, identity, pods=1, pod=0, ranks=range(1)) is not None


def test_a_pod_beyond_the_gang_holds_its_place_until_it_is_told_to_end(tmp_path: Path) -> None:
    variables = {**VARIABLES, **IDENTITY, "ECHORL_POD_INDEX": "4", "ECHORL_GRACE_S": "60"}
    command = [sys.executable, "-m", "echorl_trainer.pod", "--config", "nowhere.json"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=file, stderr=file)
    until = time.monotonic() + 60
    while b"holding a place" not in log.read_bytes():
        assert time.monotonic() < until
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == ExitCode.OK
