import pytest

from echorl_core.identity import RunIdentity

IDENTITY = RunIdentity("demo", "uid-1", 2)


def test_environment_round_trip() -> None:
    assert RunIdentity.from_environment(IDENTITY.environment()) == IDENTITY


@pytest.mark.parametrize("attempt", ["", "0", "-1", "two"])
def test_a_bad_attempt_is_refused_by_name(attempt: str) -> None:
    with pytest.raises(ValueError, match="ECHORL_ATTEMPT"):
        RunIdentity.from_environment(IDENTITY.environment() | {"ECHORL_ATTEMPT": attempt})


def test_only_messages_of_this_attempt_are_taken() -> None:
    assert IDENTITY.refusal(IDENTITY.headers()) is None
    assert "attempt '1'" in str(RunIdentity("demo", "uid-1", 2).refusal(RunIdentity("demo", "uid-1", 1).headers()))
    assert "uid-2" in str(IDENTITY.refusal(RunIdentity("demo", "uid-2", 2).headers()))
    assert IDENTITY.refusal({}) is not None
