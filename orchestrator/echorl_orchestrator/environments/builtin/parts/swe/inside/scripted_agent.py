"""A coding agent in one file: asks the model, runs the tools that it calls, and ends with ``submit``.

It is put into sandboxes, so it needs nothing but Python's standard library. Where the model is comes from
``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``MODEL``, the task from standard input, limits from ``AGENT_MAX_TURNS`` and
``AGENT_TOOLS``, the command that runs the tests from ``AGENT_TEST``. Exit codes: 0 submitted or out of turns, 1 the
model cannot be reached or refuses.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

LONGEST = int(os.environ.get("AGENT_LONGEST", "4000"))
"""Characters of one observation."""


def tool(name: str, description: str, **parameters: str) -> dict:  # type: ignore[type-arg]  # runs on old ones
    """A definition as OpenAI has them."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "list": tool("list", "List the files of the repository."),
    "read": tool("read", "Show a file with the numbers of its lines.", path="string"),
    "replace": tool("replace", "Replace a line of a file.", path="string", line="integer", text="string"),
    "test": tool("test", "Run the tests."),
    "submit": tool("submit", "Finish."),
}


def show(path: str) -> str:
    """A file with line numbers."""
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return "\n".join(f"{number} {line}" for number, line in enumerate(file.read().splitlines(), 1))


def replace(path: str, line: int, text: str) -> str:
    """Put ``text`` in the place of a line."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        lines = file.read().splitlines()
    if not 1 <= line <= len(lines):
        return f"no line {line}"
    lines[line - 1] = text
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("\n".join(lines) + "\n")
    return "ok"


def run_tests() -> str:
    """What the tests print, the end of it."""
    command = os.environ.get("AGENT_TEST", "python3 -m unittest -q")
    ran = subprocess.run(  # noqa: S602, PLW1510
        command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120
    )
    return ran.stdout.decode(errors="replace")[-LONGEST:].strip() or "ok"


def listed() -> str:
    """Paths of files, without git's and Python's own."""
    found = []
    for folder, folders, files in os.walk("."):
        folders[:] = sorted(name for name in folders if name not in (".git", "__pycache__"))
        found += [os.path.join(folder, name)[2:] for name in sorted(files)]  # noqa: PTH118
    return "\n".join(found)


RUN = {
    "list": lambda asked: listed(),
    "read": lambda asked: show(str(asked["path"])),
    "replace": lambda asked: replace(str(asked["path"]), int(asked["line"]), str(asked["text"])),
    "test": lambda asked: run_tests(),
}


def called(name: str, arguments: dict) -> str:  # type: ignore[type-arg]
    """What a tool answers; its errors too."""
    if name not in RUN:
        return f"unknown tool: {name[:32]}"
    try:
        return RUN[name](arguments)
    except KeyError as error:
        return f"{name}: {error} is missing"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{name}: {type(error).__name__}"


def ask(messages: list, tools: list) -> dict:  # type: ignore[type-arg]
    """The model's next message."""
    body = {"model": os.environ.get("MODEL", "policy"), "messages": messages, "tools": tools}
    request = urllib.request.Request(  # noqa: S310
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=900) as answer:  # noqa: S310
        message = json.load(answer)["choices"][0]["message"]
    return dict(message)


def say(text: str) -> None:
    """For the record of the episode."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Play until the model submits."""
    names = [
        name for name in os.environ.get("AGENT_TOOLS", "list,read,replace,test,submit").split(",") if name in TOOLS
    ]
    tools = [TOOLS[name] for name in names]
    messages = [{"role": "user", "content": sys.stdin.read()}]
    for _ in range(int(os.environ.get("AGENT_MAX_TURNS", "30"))):
        try:
            message = ask(messages, tools)
        except urllib.error.HTTPError as error:
            why = error.read().decode(errors="replace")
            say(f"the model refused: {error.code} {why[:500]}")
            # The episode has used up its turns or its context: what is there is what there is.
            return 0 if error.code == 400 and len(messages) > 1 else 1
        except OSError as error:
            say(f"the model cannot be reached: {error}")
            return 1
        messages.append(message)
        say(json.dumps(message))
        calls = message.get("tool_calls") or []
        if not calls:
            messages.append({"role": "user", "content": "use a tool"})
        for call in calls:
            name = call["function"]["name"]
            if name == "submit":
                return 0
            try:
                arguments = json.loads(call["function"]["arguments"] or "{}")
            except ValueError:
                arguments = {}
            answer = called(name, arguments if isinstance(arguments, dict) else {})[:LONGEST]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    return 0


if __name__ == "__main__":
    sys.exit(main())
