"""spec.environments: what the model plays, and which of the environment's tokens ECHO trains on."""

import re
from typing import Annotated, Literal

from pydantic import Field

from echorl_manifest.models.algorithm import AlgorithmOverrides
from echorl_manifest.models.base import (
    IMAGE_NAME,
    IMPORT_PATH,
    REGISTRY,
    Accepts,
    ApiModel,
    DnsLabel,
    Duration,
    Hook,
    JsonObject,
    ObjectName,
    Quantity,
    Text,
)

TYPES = (
    "builtin:<name>, verifiers:<id>, openenv:http://<host>:<port>, openenv:<registry>/<image>, "
    "nemo-gym:http://<host>:<port> or import:<pkg.module:factory>"
)
"""What an environment's type may be, in words."""
OPENENV_IMAGE = "^openenv:[^/]+/[^/]"
"""How a type begins that is an image; an address has two slashes there."""

EnvironmentType = Annotated[
    str,
    Field(
        pattern=rf"^(((builtin|verifiers|agent):|(openenv|nemo-gym):https?://)[A-Za-z0-9_./:@-]+"
        rf"|openenv:{REGISTRY}{IMAGE_NAME}|import:{IMPORT_PATH})$",
        max_length=512,
    ),
    Accepts(TYPES),
]
Workers = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], Accepts("auto, or a whole number from 1 to 1024")
]

TagName = Annotated[
    str,
    Field(pattern="^[A-Za-z][A-Za-z0-9_-]{0,31}$", max_length=32),
    Accepts("a tag's name without brackets: a letter, then up to 31 letters, digits, - and _"),
]


class Sampling(ApiModel):
    """How tokens are drawn; a model's own generation config has no say."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Training takes every value above 0; 0 (greedy) only in eval environments."""
    max_completion_tokens: Annotated[int, Field(ge=1)] = 2048
    """Most tokens of one turn; less where ``maxModelLen`` leaves less."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; other than 1 only in eval environments."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Most likely tokens to draw from; only in eval environments."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Only in eval environments."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Only in eval environments."""
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    """Only in eval environments."""


class EchoRole(ApiModel):
    """ECHO on message bodies of one role."""

    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the cross-entropy on these tokens; 0: none, and ``assistant`` still takes them from RL."""


class EchoToolRole(EchoRole):
    """ECHO on the outputs of tools."""

    tool_names: Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=64)] | None = None
    """Only outputs of these tools; absent: of all."""


class Echo(ApiModel):
    """Which tokens of the environment are predicted as well: at least one role, or a filter."""

    system: EchoRole | None = None
    """System messages, the initial one included."""
    user: EchoRole | None = None
    """User messages, the initial one included."""
    assistant: EchoRole | None = None
    """The model's own tokens: they leave RL and train by cross-entropy, as in supervised fine-tuning on them."""
    tool: EchoToolRole | None = None
    """Tool outputs."""
    warning: EchoRole | None = None
    """Warnings of the harness inside other messages; for study."""
    filter: Hook | None = None
    """A function that takes further tokens out. Alone, without a role: it chooses among all of ``system``, ``user`` and
    ``tool``, with alpha 1."""


class Holdout(ApiModel):
    """Split of one task set by a hash of the task key."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of the tasks on the eval side."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Other seeds give other splits."""
    side: Literal["train", "eval"] | None = None
    """Which side this environment plays. Default: the list that it stands in."""


class Curriculum(ApiModel):
    """Tasks that are dealt less often, by the mean reward of each task's last group."""

    easy_from: float = 1.0
    """Mean reward from which on a task is easy."""
    hard_to: float = 0.0
    """Mean reward up to which a task is hard; below ``easyFrom``."""
    keep_easy: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the easy tasks that an epoch deals."""
    keep_hard: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the hard tasks that an epoch deals."""


class Member(ApiModel):
    """Who plays one seat of a multi-agent environment."""

    policy: Literal["learner", "base", "endpoint"] = "learner"
    """The policy under training, the model under its adapter, or an OpenAI-compatible endpoint."""
    url: Text | None = None
    """Only for ``endpoint``, which needs it: base URL, such as ``https://judge.example/v1``."""
    model: Text | None = None
    """Only for ``endpoint``, which needs it: as the model is called there."""
    secret_name: ObjectName | None = None
    """Only for ``endpoint``: Secret whose key ``token`` is the endpoint's. On one machine: the environment variable
    ``ECHORL_SECRET_<NAME>``, in capitals, ``_`` for ``-`` and ``.``."""


class Server(ApiModel):
    """The pods that serve an environment which is an image."""

    replicas: Annotated[int, Field(ge=1, le=32)] = 1
    """How many; each episode stays with one of them."""
    cpu: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """Cores that each asks for; it may use more where the node has them."""
    memory: Quantity = "2Gi"
    """Of each; one that uses more is ended."""


class Environment(ApiModel):
    """What train and eval environments share."""

    name: DnsLabel
    """Unique among all environments of the run; ``all`` is reserved."""
    type: EnvironmentType
    """Where its code is. Only an ``openenv:`` image can become another one, which restarts the gang."""
    server: Server | None = None
    """Only for ``openenv:<registry>/<image>``: the pods that serve it; absent: one, of the sizes below."""
    args: JsonObject = {}
    """Keyword arguments of its factory."""
    members: Annotated[dict[str, Member], Field(max_length=64)] = {}
    """Multi-agent: who plays which seat."""
    drop_members: Annotated[tuple[Text, ...], Field(strict=False, max_length=64)] = ("judge",)
    """Multi-agent: seats whose tokens never train; one of another name than the environment's members has no effect."""
    think_tags: Annotated[tuple[TagName, ...], Field(strict=False, min_length=1, max_length=8)] = ("think",)
    """Multi-agent: tags that members reason in, ``think`` for ``<think>...</think>``; nobody else reads it."""
    workers: Workers = "auto"
    """Processes that run its code. ``auto``: one for every 256 of ``maxConcurrent``."""
    holdout: Holdout | None = None
    """Absent: it plays every task that it has."""
    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Model turns of one episode; absent: no limit."""
    episode_timeout: Duration = "10m"
    """Longest time of one episode."""
    on_timeout: Literal["drop", "score"] = "drop"
    """What an episode that ran out of time becomes."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 3
    """Tries after errors of the infrastructure; errors of the environment are not retried."""
    max_concurrent: Annotated[int, Field(ge=1, le=65536)] = 512
    """Episodes that run at the same time."""
    state_columns: Annotated[tuple[Text, ...], Field(strict=False, max_length=64)] = ()
    """Extra fields of the environment's ``info`` to keep in the episode's record."""
    sampling: Sampling = Sampling()
    """How tokens are drawn."""

    @property
    def image(self) -> str | None:
        """The image that serves it; None: it is no image."""
        return self.type.removeprefix("openenv:") if re.search(OPENENV_IMAGE, self.type) else None


class TrainEnvironment(Environment):
    """An environment that the model learns in."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the groups, relative to the other train environments."""
    max_infrastructure_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the newest 64 episodes that engines, sandboxes or workers may fail before the condition
    ``EpisodeInfrastructure`` is ``False``; the run goes on."""
    algorithm: AlgorithmOverrides | None = None
    """What differs from ``spec.algorithm`` here."""
    echo: Echo | None = None
    """Absent: no ECHO term here."""
    curriculum: Curriculum | None = None
    """Absent: every epoch deals every task."""
    train_branches: Literal["used", "all"] = "used"
    """Of an agent that drives itself: ``used``: neither its side calls train, nor answers to one prompt that it did not
    go on from; ``all``: every branch trains."""


class EvalEnvironment(Environment):
    """An environment that the model is measured in."""

    interval: Annotated[int, Field(ge=1)] = 20
    """Steps between two evals."""
    num_examples: Annotated[int, Field(ge=1)] = 64
    """Tasks of one eval; fewer where the environment has fewer."""
    group_size: Annotated[int, Field(ge=1, le=4096)] = 1
    """Episodes of each task."""
    at_start: bool = True
    """Whether the start policy is measured too."""


class Environments(ApiModel):
    """Train and eval environments."""

    train: Annotated[tuple[TrainEnvironment, ...], Field(strict=False, max_length=64)] = ()
    """At least one."""
    eval: Annotated[tuple[EvalEnvironment, ...], Field(strict=False, max_length=64)] = ()
    """Any number."""
