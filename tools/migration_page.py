"""docs/migration.md, written from the converter's tables: ``python -m tools.migration_page > docs/migration.md``."""

import sys
from collections.abc import Iterable, Iterator

from echorl_cli.convert import conversion
from echorl_cli.convert.fields import algorithm, batches, echo, environments, model, trainer
from echorl_cli.convert.keys import environments as environment_keys
from echorl_cli.convert.keys import inference, orchestrator, run
from echorl_cli.convert.keys import trainer as trainer_keys
from echorl_cli.convert.keys.row import Key
from echorl_cli.convert.renames import RENAMES

_HEAD = """\
# From prime-rl to EchoRL

Generated from `operator/echorl_cli/convert/` by `make generate`; a test fails when it is stale.

```sh
echorl convert prime-rl @ rl.toml --out run.yaml                       # one file
echorl convert prime-rl @ base.toml @ mine.toml                        # layers: base first, later ones over it
echorl convert prime-rl trainer.toml orchestrator.toml inference.toml  # the three files of a run, told by their names
echorl convert prime-rl @ rl.toml --trainer mine.toml                  # a file for one section, over the others
echorl convert prime-rl @ rl.toml --environment reverse-text=import:ours.words:environment
echorl validate run.yaml
```

The manifest goes to standard output or to `--out`. Standard error gets one line for each of these, and the manifest has
them as comments at its end:

- **no counterpart**: a key that the manifest does not have, its value, and why;
- **changed**: a value that means something else, or a default of prime-rl that is no default here;
- **not supported yet**: a field that says what you asked for and that `echorl validate` refuses until it is built;
- **to fill in**: what the files cannot know, such as the claim of the run's volume.

Secrets are never printed and never written: text under keys such as `api_key`, `token` or `headers`, and text that
looks like a key, is left out with a line that names the key alone.

## Files

Tables merge key by key, lists are replaced whole, and the text `"None"` is null. A file without the sections
`[trainer]`, `[orchestrator]` and `[inference]` that is called `trainer` or `train`, `orchestrator` or `orch`,
`inference` or `infer` stands for that section; any other file is one of the whole run. A value that several roles share
must be the same wherever it stands; only `seq_len` of a role goes before the run's own.

## What is refused

Exit code 2, nothing is written, all problems at once:

- two spellings of one key with different values: both are named;
- unknown keys, with the key that was probably meant;
- values that no known version of prime-rl takes, and forms of configuration that are unknown here:
  {forms};
- algorithms that the manifest does not have ({foreign}): any manifest would train something else;
- values that the manifest does not take, with the key that they came from.

With `--keep-going` unknown keys and such algorithms are left out, with a line each. prime-rl itself refuses unknown
keys, but each of its generations and branches knows others, and a table of all of them does not exist.

## Defaults that are written out

Where prime-rl's default is not EchoRL's, the manifest says what prime-rl would have done:

| key | value |
|---|---|
{defaults}

`max_steps` without a value means without end there; here it is to be filled in. prime-rl's monitoring by the filters
`gibberish` and `repetition`, which changes no training, is not written.

## Spellings

Either is accepted, both give the same manifest. `…` stands for `orchestrator.train` and `orchestrator.eval`.

| also written | read as |
|---|---|
{spellings}

## Keys

"Also of a role": the same key may stand after `trainer.` or `orchestrator.` too. `.*` is everything below a table.
"""


def _code(text: str) -> str:
    return f"`{text}`"


def _of_run_and_roles(keys: Iterable[str]) -> tuple[list[str], str]:
    """Keys without those that only repeat another one for a role, and the words for these."""
    kept = list(dict.fromkeys(keys))
    repeated = {f"{role}.{key}" for role in ("trainer", "orchestrator") for key in kept}
    alone = [key for key in kept if key not in repeated]
    return alone, ", also of a role" if len(alone) < len(kept) else ""


def _braced(keys: Iterable[str]) -> str:
    """Keys with a common parent written once."""
    by_parent: dict[str, list[str]] = {}
    for key in keys:
        parent, dot, name = key.rpartition(".")
        by_parent.setdefault(parent + dot, []).append(name)
    texts = []
    for parent, names in by_parent.items():
        together = parent and len(names) > 1
        texts += [f"{parent}{{{', '.join(names)}}}"] if together else [f"{parent}{name}" for name in names]
    return ", ".join(_code(text) for text in texts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(title: str, rows: Iterable[Key]) -> Iterator[str]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        grouped.setdefault((row.to, row.note), []).append(row.key)
    yield f"\n### {title}\n\n| key | becomes | how, or why not |\n|---|---|---|\n"
    for (to, note), keys in grouped.items():
        fields = ", ".join(_code(field.strip()) for field in to.split(",")) if to else "nothing"
        alone, also = _of_run_and_roles(keys)
        yield f"| {_cell(_braced(alone))}{also} | {_cell(fields)} | {_cell(note).replace('<', '&lt;')} |\n"


def _spellings() -> str:
    pairs: dict[tuple[str, str], None] = {}
    shared = ("orchestrator.train.source[]", "orchestrator.eval.source[]")
    for rename in RENAMES:
        other, read_as = rename.other, rename.read_as
        for base in shared:
            other, read_as = (
                text.replace(base, "….source[]") if text.startswith(base) else text for text in (other, read_as)
            )
        pairs[other, read_as] = None
    return "\n".join(f"| {_code(other)} | {_code(read_as)} |" for other, read_as in pairs)


def _defaults() -> str:
    rows = {
        "model.name": model.DEFAULT_MODEL,
        "seq_len": model.DEFAULT_SEQ_LEN,
        "orchestrator.batch_size": batches.DEFAULT_BATCH,
        "orchestrator.group_size": batches.DEFAULT_GROUP,
        "orchestrator.max_off_policy_steps": batches.DEFAULT_STALENESS,
        "….sampling.max_completion_tokens": "what the longest sequence leaves",
        "orchestrator.eval.interval": environments.DEFAULT_INTERVAL,
        "orchestrator.eval.num_examples": "all: to be filled in",
        "trainer.loss.ipo_threshold": f"{algorithm.IPO_THRESHOLD}, with ipo",
        "trainer.optim.betas1, betas2": ", ".join(str(beta) for beta in trainer.BETAS),
        "trainer.scheduler.warmup_steps": f"{trainer.WARMUP}, with linear and cosine",
        "trainer.model.lora.rank, alpha": ", ".join(f"{value:g}" for value in model.DEFAULT_LORA.values()),
        "….source[].echo.<role>.alpha": echo.BLOCK_ALPHA,
        "….algo.roles": f"tool at {echo.ALGORITHM_ALPHA}, with the algorithm echo",
        "….algo.decay": f"{algorithm.RAE_DECAY}, with rae (subtract, then update)",
        "….advantage.momentum": f"{algorithm.MEMBER_MOMENTUM}, with ema_per_member (update, then subtract)",
    }
    return "\n".join(f"| {_code(key)} | {value} |" for key, value in rows.items())


def page() -> str:
    """The page as Markdown."""
    head = _HEAD.format(
        forms=", ".join(_code(form) for form in conversion.UNKNOWN_FORMS),
        foreign=", ".join(_code(name) for name in algorithm.FOREIGN_ALGORITHMS),
        defaults=_defaults(),
        spellings=_spellings(),
    )
    tables = (
        ("Of the run", run.ROWS),
        ("Trainer", trainer_keys.ROWS),
        ("Orchestrator", orchestrator.ROWS),
        ("Environments", environment_keys.ROWS),
        ("Engines", inference.ROWS),
    )
    return head + "".join(line for title, rows in tables for line in _table(title, rows))


if __name__ == "__main__":
    sys.stdout.write(page())
