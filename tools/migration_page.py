"""docs/migration.md, written from the converter's tables: ``python -m tools.migration_page > docs/migration.md``."""

import json
import sys
from collections.abc import Iterable, Iterator

from echorl_cli.convert import conversion
from echorl_cli.convert.fields import algorithm, echo, environments
from echorl_cli.convert.keys import KEYS, Key, conversations, inference, orchestrator, run, trainer
from echorl_cli.convert.keys import environments as environment_keys
from echorl_cli.convert.renames import RENAMES, SUPERVISED

_HEAD = """\
# From prime-rl to EchoRL

Generated from `operator/echorl_cli/convert/` by `make generate`; a test fails when it is stale.

```sh
echorl convert prime-rl @ rl.toml --out run.yaml                       # one file
echorl convert prime-rl @ base.toml @ mine.toml                        # layers: base first, later ones over it
echorl convert prime-rl trainer.toml orchestrator.toml inference.toml  # the three files of a run, told by their names
echorl convert prime-rl @ rl.toml --trainer mine.toml                  # a file for one section, over the others
echorl convert prime-rl @ rl.toml --environment reverse-text=import:ours.words:environment
echorl convert prime-rl @ sft.toml --environment ours/words=words.jsonl  # supervised fine-tuning on a file
echorl validate run.yaml
```

What is written passes `echorl validate` as it is. It goes to standard output or to `--out`, a new file or a plain one
that is replaced; links, devices, pipes and the files that are read are refused. Standard error gets one line for each
of these, and the manifest has them as comments at its end:

- **no counterpart**: a key that the manifest does not have, its value, and why;
- **changed**: a value that means something else;
- **default**: what prime-rl does, or does not do, without a key, and EchoRL does otherwise;
- **not supported yet**: a value that the manifest can say and nothing carries out yet; it is left out;
- **to fill in**: what the files cannot know, such as the claim of the run's volume.

Secrets are never printed and never written: text under keys such as `api_key`, `token` or `headers`, and text that
looks like a key, is left out with a line that names the key alone.

## Files

Tables merge key by key, lists are replaced whole, and the text `"None"` is null. A file without the sections
`[trainer]`, `[orchestrator]` and `[inference]` that is called `trainer` or `train`, `orchestrator` or `orch`,
`inference` or `infer` stands for that section; any other file is one of the whole run. A value that several roles share
must be the same wherever it stands; only `seq_len` of a role goes before the run's own.

## Environments

`env.taskset.id`, `env.id` and `legacy.id` are ids of `verifiers`, and become `verifiers:<id>`
([what that needs](environments.md#verifiers)): with `args` of `load_environment`, or `args.taskset` and `args.harness`
of a task set. `--environment NAME=TYPE`, by an environment's name or id, says what stands for it instead:
`import:pkg.module:factory`, code of yours ([Environments](environments.md)), or `builtin:<name>`.

## Supervised fine-tuning

A file with `[data]` and without `[orchestrator]` becomes a run of mode `sft`. Its data sets are JSONL files,
`--environment DATASET=FILE.jsonl`, one object with `messages` a line, or code of yours with `given=True`; a run reads
none of a hub. `data.loss_mask` becomes `sft.trainRoles`, a batch of rows a `tokenBatchSize`, `[eval]` the run's evals.

## What is refused

Exit code 2, nothing is written, all problems at once:

- two spellings of one key with different values: both are named;
- unknown keys, with the key that was probably meant;
- values that no known version of prime-rl takes, and forms of configuration that are unknown here:
  {forms};
- algorithms that the manifest does not have ({foreign}), and environments of several modes in one
  run: any manifest would train something else;
- data sets without a type;
- values that the manifest does not take, with the key that they came from.

With `--keep-going` unknown keys and such algorithms are left out, with a line each. prime-rl itself refuses unknown
keys, but each of its generations and branches knows others, and a table of all of them does not exist.

## Defaults

Where prime-rl's default is not EchoRL's, the manifest says what prime-rl would have done, or a line what it cannot say.
They are those of its newest generation; a null turns `compile` and `ac` off, which were off in earlier ones.

| key | prime-rl's default | becomes |
|---|---|---|
{defaults}

All other defaults are the same in both: AdamW at 1e-6 with weight decay 0.01 and gradients clipped at 1, a constant
schedule, DPPO's bounds of 0.2 with `kl_tau` 0.001, temperature 1 in training, 3 tries, seed 42, the group's mean as
baseline, models compiled on GPUs, `zero_advantage` as the one filter that takes episodes out. Counting by the filters
`gibberish` and `repetition`, which changes no training, is not written. `rae` has a baseline for each agent over all
tasks (`baselinePer: member`), `ema_per_member` one for each task and member (`baselinePer: task`).

## Spellings

Either is accepted, both give the same manifest. `…` stands for `orchestrator.train` and `orchestrator.eval`. The last
ones, from `optim` on, are of files of supervised fine-tuning.

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


def _fields(to: str) -> str:
    return ", ".join(_code(field.strip()) for field in to.split(","))


def _table(title: str, rows: Iterable[Key]) -> Iterator[str]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        grouped.setdefault((row.to, row.note), []).append(row.key)
    yield f"\n### {title}\n\n| key | becomes | how, or why not |\n|---|---|---|\n"
    for (to, note), keys in grouped.items():
        fields = _fields(to) if to else "nothing"
        alone, also = _of_run_and_roles(keys)
        yield f"| {_cell(_braced(alone))}{also} | {_cell(fields)} | {_cell(note).replace('<', '&lt;')} |\n"


def _spellings() -> str:
    pairs: dict[tuple[str, str], None] = {}
    shared = ("orchestrator.train.source[]", "orchestrator.eval.source[]")
    for rename in (*RENAMES, *SUPERVISED):
        other, read_as = rename.other, rename.read_as
        for base in shared:
            other, read_as = (
                text.replace(base, "….source[]") if text.startswith(base) else text for text in (other, read_as)
            )
        pairs[other, read_as] = None
    return "\n".join(f"| {_code(other)} | {_code(read_as)} |" for other, read_as in pairs)


_SPOKEN = (
    ("max_steps", "none: without end", "nothing: to be filled in"),
    ("….sampling.max_completion_tokens", "none", "what the longest sequence leaves"),
    ("….env.agent.timeout.rollout", "none: an episode may take for ever", f"`episodeTimeout: {environments.NO_LIMIT}`"),
    ("orchestrator.eval.sampling.temperature, top_p", "the engine's, by the model's generation_config.json", "1"),
    ("orchestrator.eval.num_examples", "all", "nothing: to be filled in"),
    ("orchestrator.algo.roles", f"tool at {echo.ALGORITHM_ALPHA}, with the algorithm echo", "the same, in `echo`"),
    ("trainer.optim.momentum", "0.9 with Nesterov, with sgd", "nothing: sgd has none"),
    ("trainer.scheduler.decay_steps", "10, with linear", "nothing: the rate falls from the end of warm-up"),
    ("ckpt.interval", "no checkpoints, or the last alone", "nothing: one every 25 steps"),
    ("ckpt.keep_last", "all", "nothing: the newest 2 stay"),
    ("weight_broadcast.type", "filesystem", "nothing: http carries the same weights"),
    ("spec.stallPolicy.noStepFor", "no such limit", "nothing: 30m"),
)
"""Defaults that no key's table holds: key, what prime-rl does, what becomes of it."""


def _defaults() -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for key in KEYS:
        if key.default is not None:
            becomes = _fields(key.to) if key.to else f"nothing: {key.note}"
            grouped.setdefault((json.dumps(key.default), becomes), []).append(key.key.removesuffix(".*"))
    rows = [f"| {_braced(keys)} | {value} | {becomes} |" for (value, becomes), keys in grouped.items()]
    return "\n".join([*rows, *(f"| {_code(key)} | {value} | {becomes} |" for key, value, becomes in _SPOKEN)])


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
        ("Trainer", trainer.ROWS),
        ("Orchestrator", orchestrator.ROWS),
        ("Environments", environment_keys.ROWS),
        ("Engines", inference.ROWS),
        ("Supervised fine-tuning", conversations.ROWS),
    )
    return head + "".join(line for title, rows in tables for line in _table(title, rows))


if __name__ == "__main__":
    sys.stdout.write(page())
