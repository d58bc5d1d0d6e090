"""What the orchestrator seals and a trainer rank pulls: samples, packed micro-batches, and the notice of the end."""

from enum import IntEnum
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

WIRE_VERSION = 2
"""Of ``RankBatch``; a rank refuses batches of another version."""


class TokenRole(IntEnum):
    """Provenance of a token (``Sample.role``). It says where a token came from, never whether it trains."""

    CONTEXT = 0
    """Prompt, chat scaffold, tool definitions, the model's earlier turns re-rendered."""
    ACTION = 1
    """Sampled by an engine under the policy; has a logprob."""
    ENV_OUTPUT = 2
    """Body of a message that the environment wrote after the first model token."""
    WARNING = 3
    """A harness warning inside a message of the environment."""


class MessageRole(IntEnum):
    """Role of the chat message that a token belongs to (``Sample.message_role``)."""

    NONE = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    TOOL = 4


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One token sequence: one branch of one episode, T tokens. Every array but ``experts`` has length T.

    What trains is explicit per token (``rl_weight``, ``ce_weight``); the trainer never infers it from roles.
    Token 0 is never a target: both weights are 0 there.
    """

    episode: str
    branch: int
    group: str
    environment: str
    task_key: int | str
    attempt: int
    member: str = "learner"
    seat: str = ""
    adapter: str = ""
    reward: float | None = None
    token_ids: NDArray[np.int32]
    role: NDArray[np.uint8]
    """TokenRole of each token."""
    message_role: NDArray[np.uint8]
    """MessageRole of each token."""
    scaffold: NDArray[np.uint8]
    """1 for template tokens around a message's body, 0 for the body."""
    tool: NDArray[np.int16]
    """Index into ``tool_names`` for bodies of tool messages, else -1."""
    tool_names: list[str] = []
    logprobs: NDArray[np.float32]
    """The engine's natural-log probability of each action token; 0 elsewhere."""
    version_low: NDArray[np.int32]
    """Policy version that the engine held when the token's request was dispatched; -1 on other tokens."""
    version_high: NDArray[np.int32]
    """Policy version that the engine held when the token's request returned; -1 on other tokens."""
    turn: NDArray[np.int32]
    """Number of the model turn that sampled the token; -1 on other tokens."""
    rl_weight: NDArray[np.float32]
    ce_weight: NDArray[np.float32]
    advantage: NDArray[np.float32]
    temperature: NDArray[np.float32]
    ref_logprobs: NDArray[np.float32] | None = None
    ce_mask: NDArray[np.bool_] | None = None
    """Tokens that the component ``ce`` counts, those of weight 0 included; None: those with a ``ce_weight``."""
    experts: NDArray[np.unsignedinteger] | None = None
    """uint8 or uint16, flat: which experts of a mixture the first ``routed_tokens`` tokens went to in the engine; of
    each token all layers with experts, of each layer all experts of the token. None: not told."""
    routed_tokens: int = 0

    @property
    def ce_selected(self) -> NDArray[np.bool_]:
        """Tokens that the component ``ce`` counts, bool [T]."""
        return self.ce_weight != 0 if self.ce_mask is None else self.ce_mask

    @property
    def num_tokens(self) -> int:
        """Number of tokens, T."""
        return int(self.token_ids.shape[0])

    @property
    def sample_id(self) -> str:
        """The sample's name, which no other sample of the run has: ``<episode>/<branch>``."""
        return f"{self.episode}/{self.branch}"


ARRAY_FIELDS = (
    "token_ids",
    "role",
    "message_role",
    "scaffold",
    "tool",
    "logprobs",
    "version_low",
    "version_high",
    "turn",
    "rl_weight",
    "ce_weight",
    "advantage",
    "temperature",
)
OPTIONAL_ARRAY_FIELDS = ("ref_logprobs", "ce_mask")


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Samples packed end to end for one forward pass of one rank: T tokens of S documents.

    A dummy (every weight 0) stands where a rank has fewer micro-batches than its peers.
    """

    sample_ids: list[str]
    environments: list[str]
    """Name of each document's environment, length S."""
    lengths: NDArray[np.int32]
    """Tokens of each document, length S; sums to T."""
    token_ids: NDArray[np.int32]
    role: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    version_low: NDArray[np.int32]
    version_high: NDArray[np.int32]
    rl_weight: NDArray[np.float32]
    ce_weight: NDArray[np.float32]
    advantage: NDArray[np.float32]
    temperature: NDArray[np.float32]
    ref_logprobs: NDArray[np.float32] | None = None
    tool: NDArray[np.int16] | None = None
    """Index into ``tool_names`` of each token, -1: none. Only where ECHO trains outputs of tools, and for metrics
    alone."""
    tool_names: list[str] = []
    rewards: list[float | None] = []
    """Of each document's episode, length S; empty: not told. For exports alone, as ``ce_mask`` is."""
    ce_mask: NDArray[np.bool_] | None = None
    """Tokens that the component ``ce`` counts; None: those with a ``ce_weight``."""
    experts: NDArray[np.unsignedinteger] | None = None
    """As in ``Sample``, of one document after the other; None: of none."""
    routed_tokens: list[int] = []
    """How many tokens of each document, from its first on, ``experts`` is about, length S; empty: none."""


class RankBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one data-parallel rank trains at one step. Every rank of a step has the same number of micro-batches.

    With context parallelism several processes are such a rank together, and ``num_ranks`` counts it once.
    """

    wire_version: int = WIRE_VERSION
    run_uid: str
    attempt: int
    step: int
    """Trains version ``step - 1`` into version ``step``."""
    rank: int
    num_ranks: int
    denominators: dict[str, float]
    """Global denominator of each loss component ("rl", "ce"), over all ranks; 0 means that it is skipped."""
    checkpoint: bool
    """Save a checkpoint after this step."""
    last: bool
    """The run's last step."""
    micro_batches: list[MicroBatch]


class StopNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Answer (HTTP 410) to a pull beyond the last step: save if asked, then exit."""

    reason: Literal["finished", "stopped", "failed", "notice"]
    """``notice``: a rank of the gang was given notice, and all end as it does."""
    step: int
    """The last step that is trained."""
    checkpoint: bool
    """Whether step ``step`` must stand in a checkpoint before exit."""
