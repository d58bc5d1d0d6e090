"""What `helm test` runs: applies a run, tells what becomes of it, and removes it. Nothing but the standard library.

Arguments: the manifest (JSON), its namespace, seconds until it must have succeeded. Exit code 0: it succeeded.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path(os.environ.get("ACCOUNT_FOLDER", "/var/run/secrets/kubernetes.io/serviceaccount"))
SERVER = os.environ.get("API_SERVER", "https://kubernetes.default.svc")
REQUEST_S, POLL_S = 15, 2
ENDS = ("Succeeded", "Failed")


class Refused(Exception):
    """The API server refused a request."""


def say(text: str) -> None:
    """A line for `helm test --logs`."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def request(method: str, path: str, body: Any = None) -> dict[str, Any]:
    """One request as the pod's service account; an empty answer where there is no such object."""
    sent = urllib.request.Request(  # noqa: S310 - the API server's address is the pod's own
        SERVER + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"},
    )
    tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(sent, timeout=REQUEST_S, context=tls) as reply:  # noqa: S310
            found: dict[str, Any] = json.load(reply)
            return found
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return {}
        if error.code == 429 or error.code >= 500:
            raise
        raise Refused(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error


def patient(method: str, path: str, deadline: float) -> dict[str, Any]:
    """A request that is tried again while the API server does not answer."""
    while True:
        try:
            return request(method, path)
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            say(f"no answer: {error}")
            time.sleep(POLL_S)


def remove(path: str, deadline: float) -> None:
    """Delete the run and wait until it is gone."""
    patient("DELETE", path, deadline)
    while patient("GET", path, deadline):
        if time.monotonic() > deadline:
            raise Refused(f"{path} is not gone")
        time.sleep(POLL_S)


def follow(path: str, uid: str, deadline: float) -> str:
    """Tell every change; the phase that it ended in, or an empty text when time was up or the run went away."""
    told = ""
    while time.monotonic() < deadline:
        run = patient("GET", path, deadline)
        if run.get("metadata", {}).get("uid") != uid:
            say("the run was deleted by somebody")
            return ""
        status = run.get("status", {})
        phase = str(status.get("phase", "Pending"))
        line = (
            f"{phase:<10} step {status.get('step') or 0}: {status.get('message', 'no operator has looked at it yet')}"
        )
        if line != told:
            say(line)
            told = line
        if phase in ENDS:
            return phase
        time.sleep(POLL_S)
    say("time is up")
    return ""


def main(manifest: Path, namespace: str, seconds: float) -> int:
    """Apply, follow, remove; the exit code."""
    body = json.loads(manifest.read_text())
    runs = f"/apis/echorl.dev/v1alpha1/namespaces/{namespace}/echorlruns"
    path = f"{runs}/{body['metadata']['name']}"
    deadline = time.monotonic() + seconds
    try:
        remove(path, deadline)
        uid = request("POST", f"{runs}?fieldValidation=Strict", body)["metadata"]["uid"]
        say(f"{path} is applied")
        phase = follow(path, uid, deadline)
        if phase == "Succeeded":
            remove(path, time.monotonic() + 60)
            return 0
    except (Refused, OSError) as error:
        say(str(error))
        return 1
    say(f"{path} is left to be looked at: kubectl -n {namespace} describe erl {body['metadata']['name']}")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
