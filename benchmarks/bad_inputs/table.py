"""All cases: every table of hostile things at every place that takes them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.bad_inputs.case import Arguments, Case, document, manifest, run_directory
from benchmarks.bad_inputs.hostile import LINES, PATHS, STATES, TEXTS, VALUES, WORDS
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
    "orchestrator.env",
    "trainer.optim.lr",
    "wandb",
)
"""Of a config that is converted."""
_RUN_FILES = ("run.json", "state.json", "attempts/1/prepared.json", "checkpoints/step_000001/manifest.json")
_SUPERVISED = (".processes.json", "run.json", "state.json", "checkpoints/step_000001/manifest.json")
_READERS: dict[str, Callable[[str], Arguments]] = {
    "validate FILE": lambda path: ["validate", path],
    "render FILE": lambda path: ["render", path],
    "render --cluster FILE": lambda path: ["render", "--cluster", path],
    "run FILE": lambda path: ["run", path],
    "convert FILE": lambda path: ["convert", "prime-rl", path],
    "tokens FILE": lambda path: ["tokens", path],
}
_KUBERNETES = ("status", "why")


def cases() -> list[Case]:
    """Every case, in the order of the commands."""
    parts = (
        _fields,
        _overrides,
        _files,
        _paths,
        _records,
        _directories,
        _supervised,
        _odd_entries,
        _words,
        _config_keys,
        _clusters,
    )
    return [case for part in parts for case in part()]


def _fields() -> Iterator[Case]:
    commands: dict[str, Arguments] = {"validate": ["validate"], "render --cluster": ["render", "--cluster"]}
    for number, field in enumerate(FIELDS):
        for name, value in VALUES.items():
            # Each field in one of the commands that read it: they share the reader.
            command = list(commands)[number % len(commands)]

            def arguments(folder: Path, field: str = field, value: object = value, command: str = command) -> Arguments:
                return [*commands[command], str(document(folder, _with(field, value)))]

            yield Case(f"{command}: {field}: {name}", arguments)


def _with(field: str, value: object) -> object:
    found = full()
    if field.startswith("spec.trainer.template."):
        found = with_value(found, "spec.trainer.template", {"spec": {}})
    return with_value(found, field, value)


def _overrides() -> Iterator[Case]:
    for name, word in WORDS.items():
        yield _option("validate", "--set", name, word)
        yield _option("run", "--set", name, f"maxSteps={word}")
    for name, data in TEXTS.items():
        # A command line is no longer than this.
        if len(data) < 100_000 and b"\0" not in data:
            text = data.decode(errors="surrogateescape")
            yield _option("validate", "--set", f"a value, {name}", f"spec.environments.train[0].args={text}")


def _option(command: str, option: str, name: str, word: str) -> Case:
    return Case(f"{command} {option}: {name}", lambda folder: [command, str(manifest(folder)), option, word])


def _files() -> Iterator[Case]:
    for reader, command in _READERS.items():
        for name, data in TEXTS.items():

            def arguments(
                folder: Path, command: Callable[[str], Arguments] = command, data: bytes = data, reader: str = reader
            ) -> Arguments:
                file = folder / ("run.toml" if reader.startswith("convert") else "run.yaml")
                file.write_bytes(data)
                return command(str(file))

            yield Case(f"{reader}: {name}", arguments)


_PATH_PLACES: dict[str, Callable[[Path, str], Arguments]] = {
    **{name: (lambda _, path, command=command: command(path)) for name, command in _READERS.items()},
    "render --settings": lambda folder, path: ["render", "--cluster", str(manifest(folder)), "--settings", path],
    "run --out": lambda folder, path: ["run", str(manifest(folder)), "--out", path],
    "run --out, a folder's": lambda folder, path: ["run", str(manifest(folder)), "--out", f"{path}/a/b"],
    "report DIR": lambda _, path: ["report", path],
    "report --out": lambda folder, path: ["report", str(run_directory(folder)), "--out", path],
    "report --model": lambda folder, path: ["report", str(run_directory(folder)), "--model", path],
    "plot DIR": lambda _, path: ["plot", path],
    "plot --out": lambda folder, path: ["plot", str(run_directory(folder)), "--out", path],
    "prepare --run-dir": lambda _, path: ["prepare", "--run-dir", path],
    "prepare --run-dir, claimed": lambda _, path: ["prepare", "--run-dir", path, "--uid", "u", "--name", "n"],
    "convert --out": lambda folder, path: ["convert", "prime-rl", str(manifest(folder)), "--out", path],
    "preflight FILE": lambda _, path: ["preflight", path],
    "status --kubeconfig": lambda _, path: ["status", "x", "--kubeconfig", path],
}


def _paths() -> Iterator[Case]:
    for place, command in _PATH_PLACES.items():
        for name, make in PATHS.items():
            yield Case(
                f"{place}: {name}",
                lambda folder, command=command, make=make: command(folder, str(make(folder / "hostile"))),
            )


def _records() -> Iterator[Case]:
    for number, (name, line) in enumerate(LINES.items()):
        for table in ("steps", "evals", "episodes", "updates"):

            def arguments(folder: Path, table: str = table, line: str = line, number: int = number) -> Arguments:
                root = run_directory(folder)
                with (root / "records" / "attempt_1" / f"{table}.jsonl").open("a") as file:
                    file.write(f"{line}\n")
                return ["report" if number % 2 else "plot", str(root)]

            yield Case(f"records {table}: {name}", arguments)
        yield Case(f"tokens: {name}", lambda folder, line=line: _tokens(folder, line))


def _tokens(folder: Path, line: str) -> Arguments:
    file = folder / "tokens.jsonl"
    file.write_text(f"{line}\n")
    return ["tokens", str(file)]


def _directories() -> Iterator[Case]:
    for name, text in STATES.items():
        for file in _RUN_FILES:
            for command in (["report"], ["prepare", "--run-dir"]):

                def arguments(
                    folder: Path, file: str = file, text: str = text, command: Arguments = command
                ) -> Arguments:
                    return [*command, str(_written(run_directory(folder), file, text))]

                yield Case(f"{command[0]} {file}: {name}", arguments)


def _supervised() -> Iterator[Case]:
    for name, text in STATES.items():
        for file in _SUPERVISED:

            def supervised(folder: Path, file: str = file, text: str = text) -> Arguments:
                root = _written(run_directory(folder), file, text)
                return ["run", str(manifest(folder)), "--out", str(root)]

            yield Case(f"run {file}: {name}", supervised)


def _odd_entries() -> Iterator[Case]:
    for name, make in PATHS.items():
        for file in (".lock", ".processes.json", "run.json", "checkpoints", "logs"):

            def odd(folder: Path, file: str = file, make: Callable[[Path], Path | str] = make) -> Arguments:
                root = folder / "odd"
                root.mkdir()
                made = str(make(root / file))
                if made.startswith(("/dev/", "/proc/", "/sys/")):
                    (root / file).symlink_to(made)
                return ["run", str(manifest(folder)), "--out", str(root)]

            yield Case(f"run {file}: {name}", odd)


def _written(root: Path, file: str, text: str) -> Path:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    return root


def _words() -> Iterator[Case]:
    for name, word in WORDS.items():
        for option in ("--policy", "--step", "--attempt", "--uid", "--name", "--on-existing"):
            yield Case(
                f"prepare {option}: {name}",
                lambda folder, option=option, word=word: ["prepare", "--run-dir", str(folder / "r"), option, word],
            )
        yield Case(f"plot --episode: {name}", lambda folder, word=word: _episode(folder, word))
        yield _option("render", "--format", name, word)
        yield _option("render", "--diff", name, word)
        yield Case(f"render --cluster --namespace: {name}", lambda folder, word=word: _namespace(folder, word))
        yield Case(f"a command: {name}", lambda _, word=word: [word])


def _episode(folder: Path, word: str) -> Arguments:
    return ["plot", str(run_directory(folder)), "--episode", word]


def _namespace(folder: Path, word: str) -> Arguments:
    return ["render", "--cluster", str(manifest(folder)), "--namespace", word]


def _config_keys() -> Iterator[Case]:
    values = {
        "5,000 digits": "9" * 5000,
        "a date": "1979-05-27",
        "NaN": "nan",
        "a text": '"x"',
        "a list": "[[], {}]",
        "a mapping": "{a = {b = 1}}",
        "long": f'"{"x" * 100_000}"',
        "minus": "-1",
        "true": "true",
    }
    for key in KEYS:
        for name, value in values.items():

            def arguments(folder: Path, key: str = key, value: str = value) -> Arguments:
                file = folder / "run.toml"
                file.write_text(f"{key} = {value}\n")
                return ["convert", "prime-rl", str(file)]

            yield Case(f"convert: {key}: {name}", arguments)


def _clusters() -> Iterator[Case]:
    contents = {
        **{name: data for name, data in TEXTS.items() if len(data) < 1_000_000},
        "contexts a number": b"contexts: 5\ncurrent-context: x\n",
        "contexts without names": b"contexts: [{}]\ncurrent-context: x\n",
        "context a text": b"contexts: [{name: x, context: y}]\ncurrent-context: x\n",
        "no cluster": b"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\nclusters: []\n",
        "users a text": b"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\nclusters: y\nusers: z\n",
    }
    for number, (name, data) in enumerate(contents.items()):

        def arguments(folder: Path, data: bytes = data, number: int = number) -> Arguments:
            (folder / "config").write_bytes(data)
            return [_KUBERNETES[number % 2], "x", "--kubeconfig", str(folder / "config")]

        yield Case(f"kubeconfig: {name}", arguments)
    for name, word in WORDS.items():
        for option in ("--namespace", "--context"):
            yield Case(f"status {option}: {name}", lambda _, option=option, word=word: ["status", "x", option, word])
