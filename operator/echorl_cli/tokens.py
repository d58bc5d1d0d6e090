"""``echorl tokens FILE``: what a step trained, and how, as coloured text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from echorl_cli.token_styles import LEGENDS, TokenStyle, printable, token_style_of
from echorl_core.names import ExitCode
from echorl_core.tokens import NotTrainedTokens, Numbers, TrainedSequence, read_trained


@dataclass(frozen=True)
class Span:
    """Tokens in a row that were trained alike."""

    style: TokenStyle
    tokens: int
    text: str


def spans(sequence: TrainedSequence) -> Iterator[Span]:
    """The sequence in order; without texts a token is shown as ``<id>``."""
    texts = sequence.texts or [f"<{token_id}>" for token_id in sequence.token_ids]
    for style, members in groupby(range(len(texts)), lambda index: token_style_of(sequence, index)):
        indices = list(members)
        yield Span(style, len(indices), "".join(texts[index] for index in indices))


def headline(sequence: TrainedSequence) -> str:
    """One line: which sequence, how many tokens trained how, and means over them."""
    parts = [
        printable(f"step {sequence.step}, rank {sequence.rank}, {sequence.environment}, {sequence.sample_id}"),
        *([] if sequence.reward is None else [f"reward {sequence.reward:.4g}"]),
        f"{len(sequence.token_ids)} tokens",
    ]
    rl = [index for index, weight in enumerate(sequence.rl_weight) if weight]
    ce = [index for index, weight in enumerate(sequence.ce_weight) if weight]
    masked = f"{sum(bool(sequence.is_masked[index]) for index in rl)} masked"
    means: list[tuple[str, Numbers]] = [("ratio", sequence.ratio), ("entropy", sequence.entropy)]
    if sequence.mode == "rl":
        parts += [f"{len(rl)} by RL", masked, f"{len(ce)} by ECHO"]
    elif sequence.mode == "opd":
        parts += [f"{len(rl)} by distillation", masked]
        means.insert(0, ("lead", sequence.advantage))
    else:
        parts.append(f"{len(ce)} targets")
        means = [("logprob", sequence.trainer_logprobs)]
    indices = ce if sequence.mode == "sft" else rl
    for name, column in means:
        values = [value for index in indices if (value := column[index]) is not None]
        if values:
            parts.append(f"mean {name} {sum(values) / len(values):.4g}")
    return "; ".join(parts)


def _print_plain(sequence: TrainedSequence) -> None:
    typer.echo(headline(sequence))
    for span in spans(sequence):
        typer.echo(f"  [{span.style.label}; {span.tokens}] {span.text!r}")


def _print_coloured(console: Console, sequence: TrainedSequence) -> None:
    console.rule(Text(headline(sequence)), align="left")
    body = Text()
    for span in spans(sequence):
        body.append(printable(span.text, kept="\n"), span.style.rich)
    console.print(body)


def tokens_command(
    file: Annotated[Path, typer.Argument(help="A file under RUN/tokens/.", exists=True, dir_okay=False)],
    episode: Annotated[str | None, typer.Option(help="Show this episode, or one of its samples, alone.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Labels in place of colours; so is any pipe.")] = False,
) -> None:
    """Show what a step trained: each token's role, advantage or teacher's lead, mask, and ECHO weight or target."""
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
                console.print(Text("  ").join(Text(name, style) for name, style in LEGENDS[sequence.mode]))
            _print_plain(sequence) if plain else _print_coloured(console, sequence)
            shown += 1
    except NotTrainedTokens as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    except OSError as error:
        typer.echo(f"{file}: found {error.strerror or error}; accepted: a file that tokenExport wrote", err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    if not shown:
        known = ", ".join(list(dict.fromkeys(seen))[:5]) or "none: the file is empty"
        found = f"--episode: found {episode!r}, accepted: {known}" if episode else f"{file}: no sequence was trained"
        typer.echo(found, err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT))
