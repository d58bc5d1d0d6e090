"""Arguments of ``builtin:swe``."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from echorl_orchestrator.environments.builtin.parts.data_path import found
from echorl_orchestrator.environments.builtin.parts.swe.agents import AGENTS, AgentRow
from echorl_orchestrator.environments.builtin.parts.swe.formats import Defaults, RowError, checked_workdir
from echorl_orchestrator.environments.builtin.parts.swe.reading import DataSet, read_data_set
from echorl_orchestrator.environments.builtin.parts.swe.row import LONGEST_PATCH_BYTES, Row
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, seeded_rows
from echorl_orchestrator.environments.builtin.parts.swe.times import StageTimes, budgets
from echorl_orchestrator.failures import BadInputError

_TOLD = 10


class SweArgs(BaseModel):
    """Arguments of ``builtin:swe``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str | None = None
    """A JSONL file of rows, or a folder of tasks."""
    seeded: SeededArgs | None = None
    """Or repositories made from a seed, which is what there is without ``data``."""
    exclude: str | None = None
    """A file with keys of rows to leave out, one a line: what ``echorl environments check --drops`` writes."""
    image: str | None = None
    """For rows without one; ``{instance_id}`` and ``{docker_id}`` stand for the row's."""
    workdir: str | None = None
    """For rows without one; ``/testbed`` where nobody says any."""
    python: str = "python3"
    """With which tests run, for rows that do not say it."""
    agent: str | AgentRow = "scripted"
    """Of the table, or a row of your own."""
    agent_install: str | None = None
    """Folder, tar or image with the agent; there as ``{install}``."""
    agent_environment: dict[str, str] = {}
    """Beside the row's."""
    prompt: str | None = None
    """In place of the agent's; ``{statement}`` is the file that holds the task, ``{text}`` what it says."""
    on_agent_failure: Literal["grade", "zero", "drop"] = "grade"
    """What an episode is worth whose agent crashed or used up its time: its diff, nothing, or it is left out."""
    create_timeout_s: float = Field(default=300.0, gt=0, strict=False)
    setup_timeout_s: float = Field(default=600.0, gt=0, strict=False)
    agent_timeout_s: float | None = Field(default=None, gt=0, strict=False)
    """None: what the tests and a fifth of the episode's time leave, which is kept for preparing and grading."""
    diff_timeout_s: float = Field(default=120.0, gt=0, strict=False)
    test_timeout_s: float | None = Field(default=None, gt=0, strict=False)
    """None: a fifth of the episode's time, or what the agent leaves of four fifths."""
    longest_diff_bytes: int = Field(default=LONGEST_PATCH_BYTES, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.data is not None and self.seeded is not None:
            raise ValueError("accepted is one of data and seeded")
        if isinstance(self.agent, str) and self.agent not in AGENTS:
            raise ValueError(f"agent: found {self.agent!r}, accepted are {', '.join(AGENTS)} and a row of your own")
        row = self.agent_row
        if row.install is None and any("{install}" in text for text in row.texts()):
            raise ValueError(
                "agent_install: found nothing, accepted is a folder, tar or image with what the agent's command starts"
            )
        if self.workdir is not None:
            try:
                checked_workdir(self.workdir)
            except RowError as error:
                raise ValueError(str(error)) from None
        return self

    @property
    def agent_row(self) -> AgentRow:
        """The agent, with what the arguments add to it."""
        row = AGENTS[self.agent] if isinstance(self.agent, str) else self.agent
        changed = {"environment": {**row.environment, **self.agent_environment}}
        install = {} if self.agent_install is None else {"install": self.agent_install}
        prompt = {} if self.prompt is None else {"prompt": self.prompt}
        return row.model_copy(update={**changed, **install, **prompt})

    def times(self, episode_s: float) -> StageTimes:
        """Deadlines of the stages of an episode of ``episode_s`` seconds.

        Raises:
            BadInputError: what the arguments say does not fit into it.
        """
        agent_s, tests_s = budgets(episode_s, self.agent_timeout_s, self.test_timeout_s)
        return StageTimes(self.create_timeout_s, self.setup_timeout_s, agent_s, self.diff_timeout_s, tests_s)

    def rows(self) -> list[Row]:
        """All rows that are played.

        Raises:
            BadInputError: some cannot be used, or there are none.
        """
        if self.data is None:
            excluded = self._excluded()
            return [row for row in seeded_rows(self.seeded or SeededArgs()) if row.key not in excluded]
        data = self.data_set()
        if data.refused:
            told = data.refused[:_TOLD]
            more = len(data.refused) - len(told)
            raise BadInputError("\n".join([*told, *([f"and {more} more"] if more else [])]))
        if not data.rows:
            raise BadInputError(f"builtin:swe: args.data: found no row in {self.data}")
        return data.rows

    def data_set(self) -> DataSet:
        """What stands in ``data``, without what is excluded.

        Raises:
            BadInputError: it cannot be read.
        """
        assert self.data is not None  # noqa: S101 - asked for of those alone
        defaults = Defaults(self.image, self.workdir, self.python)
        try:
            return read_data_set(found(self.data, "builtin:swe: args.data", folder=True), defaults, self._excluded())
        except OSError as error:
            raise BadInputError(f"builtin:swe: args.data: found {self.data!r}: {error.strerror}") from None

    def _excluded(self) -> frozenset[str]:
        if self.exclude is None:
            return frozenset()
        try:
            listed = found(self.exclude, "builtin:swe: args.exclude").read_text().splitlines()
            return frozenset(line.strip() for line in listed if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"builtin:swe: args.exclude: found {self.exclude!r}: {error}") from None
