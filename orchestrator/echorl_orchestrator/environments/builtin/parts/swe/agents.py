"""Agents as a table: what is installed, what is started, and which words of the gateway it is told.

In its texts stand, between braces: ``base_url`` (of the gateway, as clients of the row's dialect want it), ``session``
(the key, which is the client's API key), ``model``, ``prompt``, ``statement`` (the file that holds the task's words),
``text`` (those words), ``workdir``, ``install``, ``home`` and ``harness`` (folders).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, model_validator

from echorl_orchestrator.environments.builtin.parts.swe import inside
from echorl_orchestrator.environments.builtin.parts.swe.box import HARNESS
from echorl_orchestrator.environments.builtin.parts.swe.preparing import STATEMENT

INSTALL = "/opt/agent"
HOME = "/tmp/echorl-agent"  # noqa: S108 - within a sandbox, which nobody shares
_WORD = re.compile(r"\{([a-z_]+)\}")
_WORDS = frozenset(
    {"base_url", "session", "model", "prompt", "statement", "workdir", "install", "home", "harness", "text"}
)


class AgentRow(BaseModel):
    """How one agent is run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    command: list[str]
    """Started in the workdir, as the unprivileged user."""
    dialect: Literal["chat", "responses", "messages"] = "chat"
    """Which API it speaks: OpenAI's chat completions or Responses, or Anthropic's Messages."""
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    """Texts by path, ``{home}/.config/x`` for example: written before the start, for the agent to own."""
    stdin: str = ""
    prompt: str = (
        "Fix the issue that {statement} describes, in the repository {workdir}. Change its sources, not its tests; run"
        " the tests; do not commit. End with one line that says what you did."
    )
    """``{prompt}`` of the others; ``{text}`` is what the statement says."""
    install: str | None = None
    """A folder, tar or image that is there, read-only, as ``{install}``."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not self.command:
            raise ValueError("command: found nothing, accepted is a program and its arguments")
        for text in self.texts():
            if unknown := sorted(set(_WORD.findall(text)) - _WORDS):
                raise ValueError(f"found {{{unknown[0]}}}, accepted are {', '.join(sorted(_WORDS))}")
        return self

    def texts(self) -> list[str]:
        """Where words are filled in."""
        return [*self.command, *self.environment.values(), *self.files, *self.files.values(), self.stdin, self.prompt]


AGENTS: Mapping[str, AgentRow] = {
    "scripted": AgentRow(
        command=["python3", "{harness}/scripted_agent.py"],
        environment={"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{session}", "MODEL": "{model}"},
        stdin="{prompt}",
        prompt="{text}",
    ),
    "claude-code": AgentRow(
        command=[
            *("{install}/bin/claude", "-p", "{prompt}", "--permission-mode", "bypassPermissions"),
            *("--output-format", "stream-json", "--verbose", "--disallowedTools", "WebFetch,WebSearch"),
        ],
        dialect="messages",
        environment={
            "ANTHROPIC_BASE_URL": "{base_url}",
            "ANTHROPIC_AUTH_TOKEN": "{session}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "DISABLE_AUTOUPDATER": "1",
        },
        files={
            "{home}/.claude.json": '{"hasCompletedOnboarding": true, "bypassPermissionsModeAccepted": true}',
            "{home}/.claude/settings.json": '{"env": {"CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}}',
        },
    ),
    "codex": AgentRow(
        command=[
            *("{install}/bin/codex", "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "{prompt}"),
        ],
        dialect="responses",
        environment={"CODEX_HOME": "{home}/.codex", "GATEWAY_KEY": "{session}"},
        files={
            # Tools that are no functions, or that look at pictures, the gateway refuses: these bring them.
            "{home}/.codex/config.toml": """model = "{model}"
model_provider = "gateway"
web_search = "disabled"

[features]
multi_agent = false
apps = false
goals = false
view_image = false

[model_providers.gateway]
name = "gateway"
base_url = "{base_url}"
env_key = "GATEWAY_KEY"
wire_api = "responses"
""",
        },
    ),
}


class Words:
    """What is filled in for one episode."""

    def __init__(
        self, row: AgentRow, *, gateway: str, base_url: str, session: str, model: str, statement: str, workdir: str
    ) -> None:
        """``gateway``: as it is reached from inside. ``base_url``: as the runner was given it, for its path."""
        path = urlsplit(base_url).path
        if row.dialect == "messages":
            path = path.removesuffix("/v1")
        self._words = {
            "base_url": gateway.rstrip("/") + path,
            "session": session,
            "model": model,
            "text": statement,
            "statement": STATEMENT,
            "workdir": workdir,
            "install": INSTALL,
            "home": HOME,
            "harness": HARNESS,
        }
        self._words["prompt"] = self.filled(row.prompt)

    def filled(self, text: str) -> str:
        """``text`` with its words."""
        return _WORD.sub(lambda found: self._words.get(found[1], found[0]), text)


def scripted_agent() -> bytes:
    """The program of the agent ``scripted``."""
    return Path(inside.__file__).with_name("scripted_agent.py").read_bytes()
