"""The run's token and the key that follows from it."""

import hashlib
import hmac

import pytest

from echorl_core.run_token import is_same, sandboxes_key, weights_key


def test_the_weights_key_is_a_mac_under_the_token() -> None:
    assert weights_key("token") == hmac.new(b"token", b"published weights", hashlib.sha256).hexdigest()
    assert weights_key("token") != weights_key("token2")


def test_the_sandboxes_key_is_another_one() -> None:
    assert sandboxes_key("token") == hmac.new(b"token", b"sandboxes", hashlib.sha256).hexdigest()
    assert sandboxes_key("token") not in {weights_key("token"), sandboxes_key("token2"), "token"}


@pytest.mark.parametrize("given", [None, "", "toke", "token ", "Token", "t\xf6ken", "\udcff"])
def test_anything_else_is_not_the_token(given: str | None) -> None:
    assert not is_same(given, "token")


def test_the_token_is_itself() -> None:
    assert is_same("token", "token")
    assert not is_same("", ""), "no secret is no key"
