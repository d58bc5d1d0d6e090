"""kopf's login: the operator's own credentials, read anew after a 401, and never in a tight loop."""

import json
from pathlib import Path

import kopf
import pytest

from echorl_operator.kube.credentials import Credentials, from_kubeconfig
from echorl_operator.kube.login import AGAIN_S, Login


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, token: str) -> None:
    clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}]
    users = [{"name": "u", "user": {"token": token}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    config = {"apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users, "contexts": contexts}
    path.write_text(json.dumps({**config, "current-context": "x"}))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def found(tmp_path: Path, clock: Clock) -> Credentials:
    write(tmp_path / "config", "first")
    credentials = from_kubeconfig(tmp_path / "config", clock=clock)
    await credentials.load()
    return credentials


async def authorization(login: Login) -> str | None:
    session = await login.session()
    assert session.server == "http://127.0.0.1:1"
    sent = session.aiohttp_session.headers.get("Authorization")
    await session.aiohttp_session.close()
    return sent


async def test_a_login_after_a_401_has_the_token_that_is_there_now(
    found: Credentials, clock: Clock, tmp_path: Path
) -> None:
    login = Login(found, clock)
    assert await authorization(login) == "Bearer first"
    write(tmp_path / "config", "second")
    clock.now += AGAIN_S
    assert await authorization(login) == "Bearer second"


async def test_a_server_that_accepts_nothing_is_not_asked_in_a_tight_loop(found: Credentials, clock: Clock) -> None:
    login = Login(found, clock)
    await authorization(login)
    clock.now += AGAIN_S / 2
    with pytest.raises(kopf.TemporaryError) as refused:
        await login.session()
    assert refused.value.delay == AGAIN_S
    clock.now += AGAIN_S / 2
    await authorization(login)


async def test_credentials_that_cannot_be_read_are_tried_again(
    found: Credentials, clock: Clock, tmp_path: Path
) -> None:
    login = Login(found, clock)
    await authorization(login)
    (tmp_path / "config").write_text("{")
    clock.now += AGAIN_S
    with pytest.raises(kopf.TemporaryError, match="configuration"):
        await login.session()
