"""Names to addresses, with a resolver that answers what the test says."""

import socket

import pytest

from echorl_orchestrator.engines.discovery import Discovery, resolve, split


@pytest.mark.parametrize("name", ["host", "host:", ":80", "host:0", "host:http", "host:70000"])
def test_name_without_host_or_port_is_refused(name):
    with pytest.raises(ValueError, match="accepted is host:port"):
        split(name)


def test_bracketed_address_is_split():
    assert split("[::1]:8000") == ("::1", 8000)


def test_literal_addresses_resolve_to_themselves():
    assert resolve("127.0.0.1", 8000) == {"127.0.0.1:8000"}
    assert resolve("::1", 8000) == {"[::1]:8000"}


async def test_addresses_follow_the_resolver_and_survive_its_hiccups():
    answers = {"a": [{"10.0.0.1:80", "10.0.0.2:80"}], "b": [{"10.0.0.3:80"}]}

    def resolver(host, port):
        answer = answers[host][-1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    discovery = Discovery(["a:80", "b:80"], resolver)
    assert await discovery.addresses() == {"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"}
    answers["a"].append({"10.0.0.2:80"})
    answers["b"].append(socket.gaierror(socket.EAI_AGAIN, "try again"))
    assert await discovery.addresses() == {"10.0.0.2:80", "10.0.0.3:80"}
    answers["b"].append(socket.gaierror(socket.EAI_NONAME, "unknown"))
    assert await discovery.addresses() == {"10.0.0.2:80"}
    answers["a"].append(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await discovery.addresses()
    discovery.close()
