"""What must not be printed: values that are secrets by the name of their key, or by their own look."""

import re
from typing import Any

from echorl_manifest.schema import Location, found_text

HIDDEN = "(hidden)"

_NAME = re.compile(
    r"(^|_)(api_?key|apikey|(access|secret|private|signing)_?key|token|secrets?|password|passwd|pwd|passphrase"
    r"|credentials?|auth|authorization|bearer|cookie)$|^key$|^headers?$"
)
_VARIABLE_KEY = re.compile(r"_(var|env)$")
_VARIABLE = re.compile(r"^(?!AKIA)[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$")
_LOOK = re.compile(
    r"\b(sk|pk|rk)[-_][A-Za-z0-9_-]{8,}|\b(hf_|gh[pousr]_|github_pat_|glpat-|xox[abps]-|pit_)[A-Za-z0-9_-]{8,}"
    r"|\bAKIA[A-Z0-9]{12,}|\beyJ[A-Za-z0-9_-]{8,}\.|://[^/\s:@]*:[^/\s@]+@|\b[Bb]earer\s+\S{8,}|-----BEGIN "
)
_MARKUP = re.compile(r"^<[^>]*>$")


def _named(segment: str | int) -> bool:
    """Whether a key is one that holds secrets."""
    if isinstance(segment, int):
        return False
    word = segment.lower().replace("-", "_")
    return bool(_NAME.search(_VARIABLE_KEY.sub("", word)))


def is_secret(location: Location, value: Any) -> bool:
    """Whether a single value must not be shown: text under a telling key, or text that looks like a key."""
    if not isinstance(value, str):
        return False
    if _LOOK.search(value):
        return True
    if not any(_named(segment) for segment in location) or _MARKUP.match(value):
        return False
    return not (_VARIABLE_KEY.search(str(location[-1])) and _VARIABLE.match(value))


def has_secret(location: Location, value: Any) -> bool:
    """Whether a value is or holds a secret."""
    if isinstance(value, dict):
        return any(has_secret((*location, str(key)), item) or _LOOK.search(str(key)) for key, item in value.items())
    if isinstance(value, list):
        return any(has_secret((*location, index), item) for index, item in enumerate(value))
    return is_secret(location, value)


def shown(location: Location, value: Any) -> str:
    """A value as a line shows it: cut when long, hidden when it is or holds a secret."""
    return HIDDEN if has_secret(location, value) else found_text(value)


def without_secrets(location: Location, value: Any) -> tuple[Any, list[Location]]:
    """A free-form value without the secrets in it, and where they were.

    A list loses the whole item that holds one, so that no place in it is left empty.
    """
    if isinstance(value, dict):
        kept, gone = {}, []
        for key, item in value.items():
            here = (*location, str(key))
            if is_secret(here, item) or _LOOK.search(str(key)):
                gone.append(here)
                continue
            kept[key], more = without_secrets(here, item)
            gone += more
        return kept, gone
    if isinstance(value, list):
        held = [index for index, item in enumerate(value) if has_secret((*location, index), item)]
        return [item for index, item in enumerate(value) if index not in held], [(*location, index) for index in held]
    return (None, [location]) if is_secret(location, value) else (value, [])
