"""Trained tokens as HTML: coloured as ``echorl tokens`` colours them, or by advantage or ratio."""

import math
from functools import cache
from html import escape
from typing import Literal

from rich.style import Style
from rich.terminal_theme import TerminalTheme

from echorl_cli.token_styles import LEGENDS, printable, token_style_of
from echorl_core.tokens import Mode, Numbers, TrainedSequence

Colouring = Literal["training", "advantage", "ratio"]
COLOURINGS: tuple[Colouring, ...] = ("training", "advantage", "ratio")
MOST_TOKENS = 8_000
"""Of one sequence; the rest is only counted."""

_NORMAL = [(15, 23, 42), (185, 28, 28), (21, 128, 61), (161, 98, 7), (29, 78, 216), (162, 28, 175), (14, 116, 144)]
_GREY, _WHITE = (120, 130, 145), (255, 255, 255)
_THEME = TerminalTheme(_WHITE, _NORMAL[0], [*_NORMAL, _GREY], [_GREY, *_NORMAL[1:], _GREY])
_STRONGEST = 0.55
"""Opacity of a background at the largest value."""


@cache
def css(rich_style: str) -> str:
    """A style as rich writes it, in CSS on white paper."""
    return Style.parse(rich_style).get_html_style(_THEME)


def legend(mode: Mode, colouring: Colouring) -> str:
    """What the colours say, in these colours."""
    if colouring == "advantage":
        return f'<span style="{_shade(1)}">above 0</span> <span style="{_shade(-1)}">below 0</span>'
    if colouring == "ratio":
        return f'<span style="{_shade(1)}">ratio 2 and more</span> <span style="{_shade(-1)}">ratio 0.5 and less</span>'
    return " ".join(f'<span style="{css(style)}">{escape(name)}</span>' for name, style in LEGENDS[mode])


def tokens(sequence: TrainedSequence, colouring: Colouring) -> str:
    """Every token in a span, whose title tells the numbers behind it."""
    texts = sequence.texts or [f"<{token_id}>" for token_id in sequence.token_ids]
    largest = _largest(sequence.advantage)
    parts = []
    for index, text in enumerate(texts[:MOST_TOKENS]):
        shown = escape(printable(text, kept="\n")).replace("\n", "↵\n")
        style = _style(sequence, index, colouring, largest)
        parts.append(f'<span style="{style}" title="{escape(title(sequence, index))}">{shown}</span>')
    if len(texts) > MOST_TOKENS:
        parts.append(f'<span class="faint">… {len(texts) - MOST_TOKENS:,} more tokens</span>')
    return f'<div class="tokens">{"".join(parts)}</div>'


def title(sequence: TrainedSequence, index: int) -> str:
    """What is known of a token, in words."""
    columns: list[tuple[str, Numbers]] = [
        ("ratio", sequence.ratio),
        ("engine logprob", sequence.engine_logprobs),
        ("trainer logprob", sequence.trainer_logprobs),
        ("entropy", sequence.entropy),
    ]
    told = [f"{name} {value:.4g}" for name, column in columns if (value := column[index]) is not None]
    version = sequence.version_low[index]
    drawn = [f"version {version}"] if version >= 0 else []
    return "; ".join([f"token {sequence.token_ids[index]}", token_style_of(sequence, index).label, *told, *drawn])


def _style(sequence: TrainedSequence, index: int, colouring: Colouring, largest: float) -> str:
    if colouring == "training":
        return css(token_style_of(sequence, index).rich)
    if colouring == "advantage":
        value = sequence.advantage[index]
        return "" if value is None else _shade(value / largest)
    ratio = sequence.ratio[index]
    return "" if ratio is None or ratio <= 0 else _shade(math.log2(ratio))


def _shade(value: float) -> str:
    """Green above 0, red below; full at 1 and -1."""
    red, green, blue = _NORMAL[2] if value > 0 else _NORMAL[1]
    return f"background: rgba({red}, {green}, {blue}, {min(1.0, abs(value)) * _STRONGEST:.2f})"


def _largest(values: Numbers) -> float:
    return max((abs(value) for value in values if value is not None), default=0.0) or 1.0
