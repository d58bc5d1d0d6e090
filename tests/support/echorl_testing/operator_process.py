"""The operator as a process of its own, as a pod would run it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

_GRACE_S = 30.0


@contextmanager
def operator_process(
    kubeconfig: Path, namespace: str, folder: Path, settings: Mapping[str, Any]
) -> Iterator["subprocess.Popen[bytes]"]:
    """``python -m echorl_operator`` for one namespace; its output is ``folder/operator.log``.

    Raises:
        AssertionError: it did not end with 0 when it was told to.
    """
    key = folder / "master-key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump({**settings, "masterKeyPath": str(key)}))
    probes, metrics = _free_ports(2)
    command = [
        *(sys.executable, "-P", "-m", "echorl_operator", "--settings", str(file)),
        *("--kubeconfig", str(kubeconfig), "--namespace", namespace),
        *("--bind", "127.0.0.1", "--probe-port", str(probes), "--metrics-port", str(metrics)),
    ]
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(_GRACE_S) == 0, (folder / "operator.log").read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
