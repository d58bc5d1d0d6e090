import hashlib
import hmac
from pathlib import Path

import pytest

from echorl_operator.orchestrators import tokens

KEY = bytes(range(32))


def test_a_token_is_the_keyed_digest_of_the_runs_uid(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 40 + b"\n")
    made = tokens.from_file(path)
    assert made.token("uid-1") == hmac.new(b"k" * 40, b"uid-1", hashlib.sha256).hexdigest()
    assert made.token("uid-1") != made.token("uid-2")


def test_the_key_shows_nowhere(tmp_path: Path) -> None:
    made = tokens.Tokens(KEY)
    assert repr(made) == str(made) == "Tokens(...)"
    path = tmp_path / "key"
    path.write_bytes(b"secret")
    with pytest.raises(ValueError, match=r"key: master key: found 6 bytes, accepted are 32 or more") as refused:
        tokens.from_file(path)
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        tokens.from_file(tmp_path / "nowhere")


def test_no_run_no_token() -> None:
    with pytest.raises(ValueError, match="empty"):
        tokens.Tokens(KEY).token("")
