"""How ``echorl tokens`` says what was done with a token: by the run's mode, in a style or in words."""

from typing import NamedTuple

from echorl_core.tokens import Mode, TrainedSequence

_ROLES = {"context": "bright_black", "action": "dim", "env_output": "cyan", "warning": "magenta"}
_ABOVE, _BELOW, _ZERO = "green", "red", "yellow"
_MASKED = "dim strike"
_ECHO = "bold underline"
_TARGET = "bold green"

_CONTEXT = ("context", _ROLES["context"])
_ENVIRONMENT, _WARNING = ("environment", _ROLES["env_output"]), ("warning", _ROLES["warning"])
_SIGNS = (("below 0", _BELOW), ("0", _ZERO), ("masked by the loss", _MASKED))

LEGENDS: dict[Mode, tuple[tuple[str, str], ...]] = {
    "rl": (
        _CONTEXT,
        ("action, advantage above 0", _ABOVE),
        *_SIGNS,
        ("action without RL", _ROLES["action"]),
        _ENVIRONMENT,
        ("with an ECHO weight", f"{_ROLES['env_output']} {_ECHO}"),
        _WARNING,
    ),
    "opd": (
        _CONTEXT,
        ("action, teacher's lead above 0", _ABOVE),
        *_SIGNS,
        ("action that does not train", _ROLES["action"]),
        _ENVIRONMENT,
        _WARNING,
    ),
    "sft": (_CONTEXT, ("target", _TARGET), _ENVIRONMENT, _WARNING),
}
"""Words and styles of the coloured view."""


def printable(text: str, kept: str = "") -> str:
    """``text`` with its control characters spelt out, but for those in ``kept``.

    They would move a terminal's cursor or change its state, and models and environments chose the text.
    """
    return "".join(c if c.isprintable() or c in kept else f"\\x{ord(c):02x}" for c in text)


class TokenStyle(NamedTuple):
    """How a token was trained; tokens in a row that agree in it are shown together."""

    mode: Mode
    role: str
    tool: str | None
    advantage: float | None
    """The token's advantage; None if it has no policy gradient."""
    masked: str
    """The test that masked the token; empty if none did."""
    ce_weight: float
    counted: bool
    """Cross-entropy counts it, though its weight may be 0."""

    @property
    def rich(self) -> str:
        """The style of the coloured view, as rich writes it."""
        base = _ROLES[self.role]
        if self.advantage is not None:
            base = _ZERO if self.advantage == 0 else _ABOVE if self.advantage > 0 else _BELOW
            base += f" {_MASKED}" if self.masked else ""
        if not self.counted:
            return base
        return _TARGET if self.mode == "sft" else f"{base} {_ECHO}"

    @property
    def label(self) -> str:
        """The words of the plain view."""
        words = [self.role if self.tool is None else f"{self.role} of {printable(self.tool)}"]
        if self.advantage is not None:
            words.append(f"{'lead' if self.mode == 'opd' else 'advantage'} {self.advantage:+.4g}")
        if self.masked:
            words.append(self.masked)
        if self.counted:
            words.append("target" if self.mode == "sft" else f"echo {self.ce_weight:.4g}")
        if self.advantage is None and not self.ce_weight:
            words.append("not trained")
        return ", ".join(words)


def token_style_of(sequence: TrainedSequence, index: int) -> TokenStyle:
    """Tell how the sequence's token ``index`` was trained."""
    return TokenStyle(
        sequence.mode,
        sequence.role[index],
        None if sequence.tool is None else sequence.tool[index],
        sequence.advantage[index] if sequence.rl_weight[index] else None,
        _masked(sequence, index),
        sequence.ce_weight[index],
        bool(sequence.ce_weight[index] if sequence.ce_mask is None else sequence.ce_mask[index]),
    )


def _masked(sequence: TrainedSequence, index: int) -> str:
    if not sequence.is_masked[index]:
        return ""
    tests = {"low": sequence.is_masked_low[index], "high": sequence.is_masked_high[index]}
    return " ".join(["masked", *(name for name, found in tests.items() if found)])
