"""spec.algorithm: loss, advantages, batches, filters."""

from typing import Annotated, Any, Literal

from pydantic import Field

from echorl_core.losses import LossType, setting_told, types_told
from echorl_manifest.models.base import ApiModel, ImportPath, JsonObject, ObjectName, Text


def _setting(name: str, meaning: str) -> Any:
    """A setting that some types of losses have; the reference says which."""
    return Field(default=None, description=setting_told(name, meaning))


class Loss(ApiModel):
    """The policy-gradient loss; ``docs/algorithms.md`` has the formulas."""

    type: Annotated[LossType, Field(description=types_told())] = "dppo"
    mask_low: Annotated[float, Field(ge=0, le=1)] | None = _setting(
        "mask_low",
        "a token is dropped when its probability fell by more than this, with ``dppo`` only if its advantage is <= 0.",
    )
    mask_high: Annotated[float, Field(ge=0, le=1)] | None = _setting(
        "mask_high",
        "a token is dropped when its probability rose by more than this, with ``dppo`` only if its advantage is "
        "positive.",
    )
    clip_low: Annotated[float, Field(ge=0, le=1)] | None = _setting(
        "clip_low", "the ratio's lower bound is 1 minus this, so 1 is no bound."
    )
    clip_high: Annotated[float, Field(ge=0)] | None = _setting("clip_high", "the ratio's upper bound is 1 plus this.")
    kl_tau: Annotated[float, Field(ge=0)] | None = _setting(
        "kl_tau", "weight of the squared log-ratio between trained and sampling policy."
    )
    aggregation: Literal["token", "episode"] = "token"
    """What counts equally in the mean: every trainable token, or every episode."""
    import_path: Annotated[ImportPath | None, Field(alias="import")] = None
    """Only for ``custom``: the loss function."""
    kwargs: JsonObject = {}
    """Only for ``custom``: its keyword arguments."""


class LengthShaping(ApiModel):
    """A bonus for those of a group's best episodes that cost less than their mean."""

    by: Literal["tokens", "turns"]
    """What an episode costs."""
    completion_weight: Annotated[float, Field(ge=0)] | None = None
    """Only for ``tokens``: cost of a sampled token; default 1."""
    environment_weight: Annotated[float, Field(ge=0)] | None = None
    """Only for ``tokens``: cost of a token that the environment wrote; default 1."""


class Advantage(ApiModel):
    """How the rewards of a group become advantages; ``docs/algorithms.md`` has the formulas."""

    type: Literal["groupMean", "none", "rae", "maxRl", "custom"] = "groupMean"
    """``groupMean``: reward minus the group's mean; ``none``: the reward itself; ``maxRl``: that difference over the
    mean, for rewards of at least 0; ``custom``: a function of your own; ``rae``: running baselines of a multi-agent
    environment's members."""
    length_shaping: LengthShaping | None = None
    """Only for ``groupMean``: shapes rewards by what episodes cost."""
    baseline_per: Literal["task", "member"] | None = None
    """Only for ``rae``: what has a running baseline of its own: every member of every task (``task``, the default), or
    every member, over all tasks (``member``)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Only for ``rae``: of the running baselines."""
    order: Literal["updateThenSubtract", "subtractThenUpdate"] | None = None
    """Only for ``rae``: whether an episode moves its own baseline first."""
    import_path: Annotated[ImportPath | None, Field(alias="import")] = None
    """Only for ``custom``: the function."""
    kwargs: JsonObject = {}
    """Only for ``custom``: its keyword arguments."""


class Filter(ApiModel):
    """A rule that takes episodes out of training; they stay in metrics, baselines and records."""

    type: Literal["zeroAdvantage", "gibberish", "repetition", "difficulty", "custom"]
    """``zeroAdvantage``: an episode whose advantage is 0; ``gibberish``: that sampled a rare token less likely than
    chance; ``repetition``: with 3000 sampled tokens of a turn in a row almost certain; ``difficulty``: of a group too
    easy or too hard by its mean reward; ``custom``: a predicate of your own."""
    enforce: bool = True
    """false: only count what would be filtered."""
    stage: Literal["group", "batch"] = "batch"
    """``group``: before an episode takes a place in the batch; ``batch``: after."""
    scope: Literal["rl", "all"] = "rl"
    """``rl``: the episode's ECHO tokens still train; ``all``: nothing of it does."""
    easy_from: float | None = None
    """Only for ``difficulty``: mean reward from which on a group is too easy; default 1."""
    hard_to: float | None = None
    """Only for ``difficulty``: mean reward up to which a group is too hard; default 0."""
    import_path: Annotated[ImportPath | None, Field(alias="import")] = None
    """Only for ``custom``: the predicate, ``fn(episode, **kwargs) -> bool``."""
    kwargs: JsonObject = {}
    """Only for ``custom``: its keyword arguments."""


class EchoNormalizer(ApiModel):
    """How the ECHO term of a step is averaged."""

    normalizer: Literal["globalTokens", "perSequence"] = "globalTokens"
    """Divide by all ECHO tokens of the step, or by each sequence's observation tokens and then by the sequences."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which every alpha rises linearly to its full value; 0: full from the first step."""


class Teacher(ApiModel):
    """An OpenAI-compatible teacher, for modes ``sft`` and ``opd``."""

    url: Text | None = None
    """Base URL, such as ``http://teacher:8000/v1``."""
    model: Text | None = None
    """Model name that it serves."""
    secret_name: ObjectName | None = None
    """Secret with its key, under ``token``. On one machine the key is the environment variable
    ``ECHORL_TEACHER_KEY``."""


class Sft(ApiModel):
    """Targets of mode ``sft``."""

    train_roles: Annotated[
        tuple[Literal["system", "user", "assistant", "tool"], ...], Field(strict=False, min_length=1, max_length=4)
    ] = ("assistant",)
    """Message roles whose tokens are targets; ``tool``: what tools answer."""
    tool_names: Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=64)] | None = None
    """Only for role ``tool``: outputs of these tools; absent: of all."""


class AlgorithmOverrides(ApiModel):
    """What one environment has of its own, each instead of the whole field of ``spec.algorithm``.

    All environments of a run share mode, denominator and ECHO's normaliser. Own functions are the run's alone.
    """

    loss: Loss | None = None
    """Instead of ``spec.algorithm.loss``; without ``aggregation``, which is the run's."""
    rl_weight: Annotated[float, Field(ge=0)] | None = None
    """Instead of ``spec.algorithm.rlWeight``."""
    advantage: Advantage | None = None
    """Instead of ``spec.algorithm.advantage``."""
    group_size: Annotated[int, Field(ge=1)] | None = None
    """Instead of ``spec.algorithm.groupSize``."""
    filters: Annotated[tuple[Filter, ...], Field(strict=False, max_length=16)] | None = None
    """Instead of ``spec.algorithm.filters``."""


class Algorithm(ApiModel):
    """What is optimised, and on which episodes."""

    mode: Literal["rl", "sft", "opd"] = "rl"
    """``rl``: reinforcement learning; ``sft``: supervised fine-tuning, on given conversations or on those that a
    teacher plays; ``opd``: on-policy distillation of a teacher's logprobs."""
    loss: Loss = Loss()
    """The policy-gradient loss."""
    rl_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the policy-gradient term. 0: only the ECHO term trains."""
    advantage: Advantage = Advantage()
    """How the rewards of a group become advantages."""
    group_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Episodes of one task, which share a baseline. Default: 16; 1 in modes ``sft`` and ``opd``, which have none."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Episodes of a step; a multiple of ``groupSize``. Default: 16 groups."""
    token_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Instead of ``batchSize``: trainable tokens of a step."""
    max_staleness: Annotated[int, Field(ge=0)] = 2
    """Policy versions that a sample may lie behind the one that trains on it. 0: no update while episodes run."""
    oversampling: Annotated[float, Field(ge=1, le=16)] = 1.0
    """Episodes kept in flight, in batches."""
    filters: Annotated[tuple[Filter, ...], Field(strict=False, max_length=16)] = (Filter(type="zeroAdvantage"),)
    """Rules that take episodes out of training."""
    echo: EchoNormalizer = EchoNormalizer()
    """How the ECHO term is averaged; which tokens it covers is set per environment."""
    max_branches: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples that one episode may become when its history is rewritten."""
    reward_per_branch: Literal["full", "split"] = "full"
    """What each branch of an episode pulls with. ``full``: with the whole advantage; ``split``: with a part of it, so
    that all of them together pull as hard as one alone."""
    teacher: Teacher | None = None
    """For modes ``sft`` and ``opd``."""
    sft: Sft | None = None
    """For mode ``sft``."""
