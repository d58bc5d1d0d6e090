"""``builtin:terminal``: find a value in a small file tree with shell-like tools, then submit it.

    user       port?
    assistant  grep port            -> tool  etc/a
    assistant  cat etc/a            -> tool  # etc/a
                                             port=fern
    assistant  submit fern          -> reward 1

What the harness says about the model's way of calling (unknown command, output cut, no command) is a warning; what a
command says about the files is an observation, its errors included.
"""

from typing import Any

from echorl_orchestrator.environments.file_tree import CommandError, FileTree
from echorl_orchestrator.environments.terminal_tasks import TerminalArgs, TerminalTasks, ToolName
from echorl_orchestrator.types import Action, Environment, Span, Step

NAME, KIND = "terminal", "text_env"

_DESCRIPTIONS: dict[ToolName, tuple[str, dict[str, str], list[str]]] = {
    "ls": ("List a directory, or all directories.", {"path": "directory"}, []),
    "cat": ("Show a file.", {"path": "file"}, ["path"]),
    "grep": ("List files that contain a text.", {"pattern": "text"}, ["pattern"]),
    "write": (
        "Write a file.",
        {"path": "file", "mode": "append or overwrite", "text": "text"},
        ["path", "mode", "text"],
    ),
    "submit": ("Give the answer and finish.", {"word": "answer"}, ["word"]),
}


def tool_definitions(names: list[ToolName]) -> list[dict[str, Any]]:
    """OpenAI definitions of the named tools."""
    definitions = []
    for name in names:
        description, parameters, required = _DESCRIPTIONS[name]
        properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
        schema = {"type": "object", "properties": properties, "required": required}
        function = {"name": name, "description": description, "parameters": schema}
        definitions.append({"type": "function", "function": function})
    return definitions


class TerminalEnv:
    """One tree and one question."""

    def __init__(self, args: TerminalArgs) -> None:
        self._args = args
        self._tree = FileTree()
        self._answer = ""
        self._calls = 0
        self._warned = 0

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        """Ask for the value of a key."""
        self._tree = FileTree(dict(task["files"]))
        self._answer = task["answer"]
        prompt = {"role": "user", "content": f"{task['question']}?"}
        return Step([prompt], tools=tool_definitions(self._args.tools), reward=0.0)

    def step(self, action: Action) -> Step:
        """Run the calls in order, up to the first submission."""
        messages: list[dict[str, Any]] = []
        warnings: list[Span] = []
        for call in action.tool_calls:
            self._calls += 1
            if call["name"] == "submit" and isinstance(call["arguments"].get("word"), str):
                right = call["arguments"]["word"] == self._answer
                return Step([], reward=float(right), terminated=True, metrics=self._metrics(submitted=True))
            text, start = self._run(call["name"], call["arguments"])
            if start is not None:
                self._warned += 1
                warnings.append(Span(len(messages), start, len(text)))
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "name": call["name"], "content": text})
        if not messages:
            self._warned += 1
            text = "use a command"
            messages, warnings = [{"role": "user", "content": text}], [Span(0, 0, len(text))]
        return Step(messages, reward=0.0, metrics=self._metrics(submitted=False), warnings=warnings)

    def close(self) -> None:
        """Nothing is held."""

    def _metrics(self, *, submitted: bool) -> dict[str, float]:
        return {"calls": float(self._calls), "warnings": float(self._warned), "submitted": float(submitted)}

    def _run(self, name: str, arguments: dict[str, Any]) -> tuple[str, int | None]:
        """What a call answers, and where in it a warning starts (to its end)."""
        if name not in self._args.tools:
            return f"unknown command: {name[:32]}", 0
        _, known, required = _DESCRIPTIONS[name]
        if set(arguments) - set(known) or not all(arguments.get(key) for key in required):
            return f"usage: {' '.join([name, *required])}", 0
        if not all(isinstance(value, str) for value in arguments.values()):
            return f"{name}: arguments are text", 0
        try:
            text: str = getattr(self._tree, name)(**arguments)
        except CommandError as error:
            text = str(error)
        raw = text.encode()
        if len(raw) <= self._args.max_bytes:
            return text, None
        kept = raw[: self._args.max_bytes].decode(errors="ignore")
        return f"{kept}\n[cut at {self._args.max_bytes} bytes]", len(kept)


def build(**args: Any) -> Environment:
    """The environment that ``builtin:terminal`` names."""
    checked = TerminalArgs.model_validate(args)
    return Environment(TerminalTasks(checked), text_env=lambda: TerminalEnv(checked))
