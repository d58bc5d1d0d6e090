"""The operator as a process of its own, as a pod would run it."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from echorl_operator.kube.election import EXIT_LOST_LEADERSHIP
from echorl_testing.ports import free_ports

_GRACE_S = 60.0


@contextmanager
def operator_process(
    kubeconfig: Path,
    namespace: str | None,
    folder: Path,
    settings: Mapping[str, Any],
    *arguments: str,
    code: Path | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """``python -m echorl_operator`` for one namespace, or for all; its output is appended to ``folder/operator.log``.

    Args:
        kubeconfig: whose rights it has.
        namespace: that it looks after; None: all, or those that ``arguments`` name.
        folder: for its files; its master key stays the same for all processes of one folder.
        settings: of the installation.
        arguments: further ones of the command line; they win.
        code: folder of another version of this repository, whose operator it is.

    Raises:
        AssertionError: it did not end with 0 when it was told to.
    """
    process = _start(_command(kubeconfig, namespace, folder, settings, arguments), folder, code)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(_GRACE_S) == 0, (folder / "operator.log").read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def operator_pod(
    kubeconfig: Path, namespace: str | None, folder: Path, settings: Mapping[str, Any], *arguments: str
) -> Iterator[list[int]]:
    """The same, started again when it ends, as a kubelet would; yields the exit codes so far.

    On a machine that is too busy an operator loses its lease, and ends; it must be right after that, too.

    Raises:
        AssertionError: it ended otherwise.
    """
    command = _command(kubeconfig, namespace, folder, settings, arguments)
    codes: list[int] = []
    stopping, processes = threading.Event(), [_start(command, folder)]

    def keep() -> None:
        while True:
            code = processes[-1].wait()
            if stopping.is_set():
                return
            codes.append(code)
            processes.append(_start(command, folder))

    kubelet = threading.Thread(target=keep, name="kubelet")
    kubelet.start()
    try:
        yield codes
    finally:
        stopping.set()
        told, until = None, time.monotonic() + _GRACE_S
        while kubelet.is_alive() and time.monotonic() < until:
            if processes[-1] is not told:
                # It may have been started a moment ago.
                told = processes[-1]
                told.send_signal(signal.SIGTERM)
            kubelet.join(0.2)
        processes[-1].kill()
        kubelet.join()
    ends = {*codes, processes[-1].returncode}
    assert ends <= {0, EXIT_LOST_LEADERSHIP}, (ends, (folder / "operator.log").read_text()[-4000:])


def _command(
    kubeconfig: Path, namespace: str | None, folder: Path, settings: Mapping[str, Any], arguments: Sequence[str]
) -> list[str]:
    key = folder / "master-key"
    if not key.exists():
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump({**settings, "masterKeyPath": str(key)}))
    probes, metrics = free_ports(2)
    return [
        *(sys.executable, "-P", "-m", "echorl_operator", "--settings", str(file)),
        *("--kubeconfig", str(kubeconfig), *(() if namespace is None else ("--namespace", namespace))),
        *("--bind", "127.0.0.1", "--probe-port", str(probes), "--metrics-port", str(metrics), *arguments),
    ]


def _start(command: Sequence[str], folder: Path, code: Path | None = None) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if code is not None:
        environ["PYTHONPATH"] = os.pathsep.join(str(code / package) for package in ("core", "operator"))
    with (folder / "operator.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ)
