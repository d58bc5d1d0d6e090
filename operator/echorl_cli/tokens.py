"""``echorl tokens FILE``: what a step trained, and how, as coloured text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from echorl_core.names import ExitCode
from echorl_core.tokens import NotTrainedTokens, TrainedSequence, read_trained

LEGEND = (
    ("context", "bright_black"),
    ("action, advantage above 0", "green"),
    ("below 0", "red"),
    ("0", "yellow"),
    ("masked by the loss", "dim strike"),
    ("action without RL", "dim"),
    ("environment", "cyan"),
    ("with an ECHO weight", "bold cyan underline"),
    ("warning", "magenta"),
)
_STYLES = dict(LEGEND)


class Treatment(NamedTuple):
    """How a token was trained; tokens in a row that agree in it are shown together."""

    role: str
    advantage: float | None
    """None: no policy gradient."""
    masked: bool
    ce_weight: float

    @property
    def style(self) -> str:
        """Of the coloured view."""
        base = {"env_output": "cyan", "warning": "magenta", "context": "bright_black", "action": "dim"}[self.role]
        if self.advantage is not None:
            sign = "0" if self.advantage == 0 else "action, advantage above 0" if self.advantage > 0 else "below 0"
            base = _STYLES[sign] + (" dim strike" if self.masked else "")
        return f"{base} bold underline" if self.ce_weight else base

    @property
    def label(self) -> str:
        """Of the plain view."""
        words = [self.role]
        if self.advantage is not None:
            words.append(f"advantage {self.advantage:+.4g}")
        if self.masked:
            words.append("masked")
        if self.ce_weight:
            words.append(f"echo {self.ce_weight:.4g}")
        if self.advantage is None and not self.ce_weight:
            words.append("not trained")
        return ", ".join(words)


@dataclass(frozen=True)
class Span:
    """Tokens in a row that were trained alike."""

    treatment: Treatment
    tokens: int
    text: str


def spans(sequence: TrainedSequence) -> Iterator[Span]:
    """The sequence in order; without texts a token is shown as ``<id>``."""
    texts = sequence.texts or [f"<{token_id}>" for token_id in sequence.token_ids]
    for treatment, members in groupby(range(len(texts)), lambda index: _treatment(sequence, index)):
        indices = list(members)
        yield Span(treatment, len(indices), "".join(texts[index] for index in indices))


def _treatment(sequence: TrainedSequence, index: int) -> Treatment:
    advantage = sequence.advantage[index] if sequence.rl_weight[index] else None
    return Treatment(sequence.role[index], advantage, bool(sequence.is_masked[index]), sequence.ce_weight[index])


def headline(sequence: TrainedSequence) -> str:
    """One line: which sequence, how many tokens trained how, and means."""
    rl = [index for index, weight in enumerate(sequence.rl_weight) if weight]
    parts = [
        f"step {sequence.step}, rank {sequence.rank}, {sequence.environment}, {sequence.sample_id}",
        f"{len(sequence.token_ids)} tokens",
        f"{len(rl)} by RL",
        f"{sum(bool(sequence.is_masked[index]) for index in rl)} masked",
        f"{sum(weight != 0 for weight in sequence.ce_weight)} by ECHO",
    ]
    for name, column in (("ratio", sequence.ratio), ("entropy", sequence.entropy)):
        values = [value for index in rl if (value := column[index]) is not None]
        if values:
            parts.append(f"mean {name} {sum(values) / len(values):.4g}")
    return "; ".join(parts)


def _print_plain(sequence: TrainedSequence) -> None:
    typer.echo(headline(sequence))
    for span in spans(sequence):
        typer.echo(f"  [{span.treatment.label}; {span.tokens}] {span.text!r}")


def _print_coloured(console: Console, sequence: TrainedSequence) -> None:
    console.rule(Text(headline(sequence)), align="left")
    body = Text()
    for span in spans(sequence):
        # Control characters of a model's text would move the terminal's cursor or change its state.
        body.append(
            "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in span.text), span.treatment.style
        )
    console.print(body)


def tokens_command(
    file: Annotated[Path, typer.Argument(help="A file under RUN/tokens/.", exists=True, dir_okay=False)],
    episode: Annotated[str | None, typer.Option(help="Show this episode, or one of its samples, alone.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Labels in place of colours; so is any pipe.")] = False,
) -> None:
    """Show what a step trained: each token's role, advantage, mask and ECHO weight."""
    console = Console(highlight=False)
    plain = plain or not console.is_terminal
    seen: list[str] = []
    shown = 0
    try:
        for sequence in read_trained(file):
            seen.append(sequence.episode)
            if episode not in {None, sequence.episode, sequence.sample_id}:
                continue
            if not plain and not shown:
                console.print(Text("  ").join(Text(name, style) for name, style in LEGEND))
            _print_plain(sequence) if plain else _print_coloured(console, sequence)
            shown += 1
    except NotTrainedTokens as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    if not shown:
        known = ", ".join(list(dict.fromkeys(seen))[:5]) or "none: the file is empty"
        found = f"--episode: found {episode!r}, accepted: {known}" if episode else f"{file}: no sequence was trained"
        typer.echo(found, err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT))
