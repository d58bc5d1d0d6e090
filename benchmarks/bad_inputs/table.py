"""All cases: every table of hostile things at every place that takes them."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.bad_inputs.case import Arguments, Case, document, manifest, rows, run_directory
from benchmarks.bad_inputs.hostile import LINES, PATHS, STATES, TEXTS, TOML_VALUES, VALUES, WORDS
from echorl_testing.manifests.documents import full, with_value

FIELDS = (
    "apiVersion",
    "metadata",
    "metadata.name",
    "metadata.labels",
    "metadata.annotations",
    "spec",
    "spec.model.name",
    "spec.model.lora",
    "spec.model.renderer",
    "spec.maxSteps",
    "spec.algorithm",
    "spec.algorithm.loss.type",
    "spec.algorithm.filters",
    "spec.environments.train",
    "spec.environments.train.0",
    "spec.environments.train.0.type",
    "spec.environments.train.0.args",
    "spec.environments.train.0.members",
    "spec.environments.train.0.echo",
    "spec.trainer.image",
    "spec.trainer.template",
    "spec.trainer.template.spec.containers",
    "spec.inference.extraArgs",
    "spec.egress",
    "spec.stallPolicy.noStepFor",
    "spec.failurePolicy.rules",
    "spec.code.path",
    "spec.storage.size",
)
"""Of a manifest, as dotted paths."""
KEYS = (
    "max_steps",
    "model.name",
    "seq_len",
    "orchestrator.batch_size",
    "orchestrator.rollouts_per_example",
    "orchestrator.oversampling_factor",
    "orchestrator.max_inflight_rollouts",
    "orchestrator.max_off_policy_steps",
    "orchestrator.buffer.env_ratios",
    "orchestrator.buffer.easy_threshold",
    "orchestrator.sampling.temperature",
    "orchestrator.sampling.max_tokens",
    "orchestrator.eval",
    "orchestrator.env",
    "trainer.optim.lr",
    "trainer.loss",
    "ckpt.interval",
    "inference.parallel.tp",
    "deployment.num_train_gpus",
    "wandb",
)
"""Of a config that is converted."""
_CONFIG = {
    "max_steps": "10",
    "model.name": '"m"',
    "orchestrator.batch_size": "64",
    "orchestrator.env": '[{id = "x"}]',
}
"""A config that converts, where an environment is given."""
_RUN_FILES = ("run.json", "state.json", "attempts/1/prepared.json", "checkpoints/step_000001/manifest.json")
_SUPERVISED = (".processes.json", "run.json", "state.json", "checkpoints/step_000001/manifest.json")
_ENTRIES = (".lock", ".processes.json", "run.json", "checkpoints", "logs")
_READERS = (
    "validate PATH",
    "plan PATH",
    "render PATH",
    "render --cluster PATH",
    "run PATH",
    "convert prime-rl PATH",
    "tokens PATH",
    "preflight PATH",
    "status x --kubeconfig PATH",
    "why x --kubeconfig PATH",
    "render --cluster MANIFEST --settings PATH",
    "environments check PATH",
)
"""Commands that read a file. MANIFEST is a valid one, RUN the directory of a run, ROWS a data set."""
_TAKE_PATHS = (
    *_READERS,
    "run MANIFEST --out PATH",
    "run MANIFEST --out PATH/a/b",
    "report PATH",
    "report RUN --out PATH",
    "report RUN --model PATH",
    "plot PATH",
    "plot RUN --out PATH",
    "prepare --run-dir PATH",
    "prepare --run-dir PATH --uid u --name n",
    "convert prime-rl MANIFEST --out PATH",
    "view PATH",
    "environments check ROWS --drops PATH",
)
_TAKE_WORDS = (
    "validate MANIFEST --set PATH",
    "run MANIFEST --set maxSteps=PATH",
    "render MANIFEST --format PATH",
    "render MANIFEST --diff PATH",
    "render --cluster MANIFEST --namespace PATH",
    "plot RUN --episode PATH",
    *(f"prepare --run-dir NEW {name} PATH" for name in ("--policy", "--step", "--attempt", "--uid", "--name")),
    "prepare --run-dir NEW --on-existing PATH",
    "status x --namespace PATH",
    "status x --context PATH",
    "why PATH",
    "tokens MANIFEST --episode PATH",
    "view RUN --host PATH",
    "view RUN --port PATH",
    *(f"environments check ROWS {name} PATH" for name in ("--args", "--resources", "--episode-timeout", "--jobs")),
    "PATH",
)
_NO_HOST = "203.0.113.7"
"""An address that is no machine's: what is refused later than a run is not served."""
_LONGEST_WORD = 100_000
"""Bytes; a command line takes a little more."""


def cases() -> list[Case]:
    """Every case, in the order of the commands."""
    parts = (_fields, _overrides, _files, _tasks, _paths, _words, _records, _directories, _entries, _config_keys)
    return [case for part in parts for case in part()]


def _filled(template: str, path: str, folder: Path) -> Arguments:
    made = {"MANIFEST": manifest, "RUN": run_directory, "ROWS": rows, "NEW": _new}
    words = [str(made[word](folder)) if word in made else word for word in template.split()]
    return [word.replace("PATH", path) for word in words]


def _new(folder: Path) -> Path:
    return folder / "new"


def _fields() -> Iterator[Case]:
    commands = ("validate PATH", "render --cluster PATH")
    for (number, field), (name, value) in product(enumerate(FIELDS), VALUES.items()):
        # Each field in one of the commands that read it: they share the reader.
        template = commands[number % len(commands)]
        yield Case(f"{template}: {field}: {name}", partial(_with_field, template, field, value))


def _with_field(template: str, field: str, value: object, folder: Path) -> Arguments:
    found = full()
    if field.startswith("spec.trainer.template."):
        found = with_value(found, "spec.trainer.template", {"spec": {}})
    return _filled(template, str(document(folder, with_value(found, field, value))), folder)


def _overrides() -> Iterator[Case]:
    for name, data in TEXTS.items():
        if len(data) < _LONGEST_WORD and b"\0" not in data:
            value = f"spec.environments.train[0].args={data.decode(errors='surrogateescape')}"
            yield Case(
                f"validate MANIFEST --set: a value: {name}", partial(_filled, "validate MANIFEST --set PATH", value)
            )


def _files() -> Iterator[Case]:
    for template, (name, data) in product(_READERS, TEXTS.items()):
        yield Case(f"{template}: {name}", partial(_with_content, template, data))


def _with_content(template: str, data: bytes, folder: Path) -> Arguments:
    file = folder / ("file.toml" if "prime-rl" in template else "file.yaml")
    file.write_bytes(data)
    return _filled(template, str(file), folder)


def _tasks() -> Iterator[Case]:
    for name, data in TEXTS.items():
        if len(data) < _LONGEST_WORD or "TOML" in name or "deep" in name:
            yield Case(f"environments check: task.toml: {name}", partial(_with_task, data))


def _with_task(data: bytes, folder: Path) -> Arguments:
    task = folder / "tasks" / "one"
    task.mkdir(parents=True)
    (task / "task.toml").write_bytes(data)
    return ["environments", "check", str(task.parent)]


def _paths() -> Iterator[Case]:
    for template, (name, make) in product(_TAKE_PATHS, PATHS.items()):
        yield Case(f"{template}: {name}", partial(_with_path, template, make))


def _with_path(template: str, make: Callable[[Path], Path | str], folder: Path) -> Arguments:
    return _filled(template, str(make(folder / "hostile")), folder)


def _words() -> Iterator[Case]:
    for template, (name, word) in product(_TAKE_WORDS, WORDS.items()):
        yield Case(f"{template}: a word: {name}", partial(_filled, template, word))


def _records() -> Iterator[Case]:
    for number, (name, line) in enumerate(LINES.items()):
        template = "report RUN" if number % 2 else "plot RUN"
        for table in ("steps", "evals", "episodes", "updates"):
            yield Case(f"{template}: {table}: {name}", partial(_with_row, template, table, line))
        yield Case(f"tokens PATH: a line: {name}", partial(_with_content, "tokens PATH", f"{line}\n".encode()))


def _with_row(template: str, table: str, line: str, folder: Path) -> Arguments:
    arguments = _filled(template, "", folder)
    with (Path(arguments[-1]) / "records" / "attempt_1" / f"{table}.jsonl").open("a") as file:
        file.write(f"{line}\n")
    return arguments


def _directories() -> Iterator[Case]:
    places = [*product(("report RUN", "prepare --run-dir RUN"), _RUN_FILES)]
    places += product(("run MANIFEST --out RUN",), _SUPERVISED)
    places += product((f"view --host {_NO_HOST} RUN",), ("run.json",))
    for (template, file), (name, text) in product(places, STATES.items()):
        yield Case(f"{template}: {file}: {name}", partial(_with_state, template, file, text))


def _with_state(template: str, file: str, text: str, folder: Path) -> Arguments:
    arguments = _filled(template, "", folder)
    path = Path(arguments[-1]) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return arguments


def _entries() -> Iterator[Case]:
    for entry, (name, make) in product(_ENTRIES, PATHS.items()):
        yield Case(f"run MANIFEST --out NEW: {entry}: {name}", partial(_with_entry, entry, make))


def _with_entry(entry: str, make: Callable[[Path], Path | str], folder: Path) -> Arguments:
    arguments = _filled("run MANIFEST --out NEW", "", folder)
    path = Path(arguments[-1]) / entry
    path.parent.mkdir()
    if (made := str(make(path))).startswith(("/dev/", "/proc/", "/sys/")):
        path.symlink_to(made)
    return arguments


def _config_keys() -> Iterator[Case]:
    template = "convert prime-rl PATH --environment x=builtin:digits"
    for key, (name, value) in product(KEYS, TOML_VALUES.items()):
        lines = [f"{other} = {text}" for other, text in _CONFIG.items() if not other.startswith(key)]
        data = "\n".join([*lines, f"{key} = {value}", ""]).encode()
        yield Case(f"{template}: {key}: {name}", partial(_with_content, template, data))
