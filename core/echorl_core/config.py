"""Typed config of each role. The operator compiles a manifest into them; roles read one JSON file and nothing else.

Identity (run, attempt) and secrets come from the environment, so these files are the same for every attempt.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class RoleConfig(BaseModel):
    """Base of all role configs: strict about unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def load(cls, path: Path) -> "RoleConfig":
        """Read the config that ``dump`` wrote."""
        return cls.model_validate_json(path.read_text())

    def dump(self, path: Path) -> None:
        """Write the config as indented JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n")


class LoraConfig(RoleConfig):
    """A low-rank adapter that trains in place of the model's weights."""

    rank: int
    alpha: float
    """The adapter's output is multiplied by ``alpha / rank``."""
    target_modules: list[str]
    """Linear layers that have one: whole names, or ends of names from a dot on."""


class ModelConfig(RoleConfig):
    """The model under training."""

    path: str
    """Folder with config.json, safetensors files and the tokenizer."""
    dtype: Literal["float32", "bfloat16"]
    """Of the engines' weights and of the trainer's compute; master weights are float32."""
    max_model_len: int
    renderer: str
    """Name of a message codec, or "engine" when vLLM renders."""
    lora: LoraConfig | None = None
    """None: all weights train."""


class SamplingConfig(RoleConfig):
    """How tokens are drawn. For training only the temperature may differ from plain sampling."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_completion_tokens: int = 2048


class HookConfig(RoleConfig):
    """A user's function by import path, ``pkg.module:name``."""

    import_path: str
    kwargs: dict[str, Any] = {}


class EchoRoleConfig(RoleConfig):
    """ECHO on the bodies of one message role."""

    alpha: float
    tool_names: list[str] | None = None
    """Only for role ``tool``: bodies of these tools; None means all."""


class EchoConfig(RoleConfig):
    """ECHO of one environment; at least one role is set."""

    system: EchoRoleConfig | None = None
    user: EchoRoleConfig | None = None
    assistant: EchoRoleConfig | None = None
    tool: EchoRoleConfig | None = None
    warning: EchoRoleConfig | None = None
    filter: HookConfig | None = None


class FilterConfig(RoleConfig):
    """A rule that takes episodes out of training; they stay in metrics, baselines and records."""

    type: Literal["zeroAdvantage", "gibberish", "repetition", "difficulty", "custom"]
    enforce: bool = True
    stage: Literal["group", "batch"] = "batch"
    scope: Literal["rl", "all"] = "rl"
    hook: HookConfig | None = None
    """For custom, and only for it."""
    easy_from: float = 1.0
    """For difficulty: mean reward of a group from which on it is too easy."""
    hard_to: float = 0.0
    """For difficulty: mean reward up to which it is too hard."""

    @property
    def name(self) -> str:
        """What metrics and records call it: its type, or the import path of a custom one."""
        return self.type if self.hook is None else self.hook.import_path


class LengthShapingConfig(RoleConfig):
    """A bonus on a group's best rewards for episodes that cost less than the others of them."""

    by: Literal["tokens", "turns"]
    completion_weight: float = 1.0
    """Of a sampled token; for ``tokens``."""
    environment_weight: float = 1.0
    """Of a token that the environment wrote; for ``tokens``."""


class AdvantageConfig(RoleConfig):
    """How rewards of a group become advantages."""

    type: Literal["groupMean", "none", "maxRl", "custom", "rae"] = "groupMean"
    momentum: float = 0.9
    """For rae: share of the old baseline that stays."""
    order: Literal["updateThenSubtract", "subtractThenUpdate"] = "updateThenSubtract"
    """For rae."""
    length_shaping: LengthShapingConfig | None = None
    """For groupMean."""
    hook: HookConfig | None = None
    """For custom, and only for it."""


class CurriculumConfig(RoleConfig):
    """Which of an environment's tasks are dealt less often, by how hard they are for the policy."""

    easy_from: float
    """Mean reward of a task's last group from which on it is easy."""
    hard_to: float
    """Mean reward up to which it is hard."""
    keep_easy: float
    """Share of the easy tasks that an epoch deals, 0 to 1."""
    keep_hard: float


class OverridesConfig(RoleConfig):
    """What one train environment has of its own, in place of the run's; None: the run's."""

    group_size: int | None = None
    rl_weight: float | None = None
    advantage: AdvantageConfig | None = None
    filters: list[FilterConfig] | None = None


class SeatConfig(RoleConfig):
    """Who plays a member of a multi-agent environment."""

    policy: Literal["learner", "base", "endpoint"] = "learner"
    url: str | None = None
    """For endpoint: base URL of an OpenAI-compatible API."""
    model: str | None = None
    """For endpoint: as it is called there."""
    key_variable: str | None = None
    """For endpoint: environment variable with its key; None: it needs none."""


class EnvironmentConfig(RoleConfig):
    """One train or eval environment."""

    name: str
    type: str
    """``builtin:<name>`` or ``import:pkg.module:factory``."""
    args: dict[str, Any] = {}
    weight: float = 1.0
    workers: int = 1
    holdout_fraction: float | None = None
    holdout_seed: int = 0
    holdout_side: Literal["train", "eval"] = "train"
    max_turns: int | None = None
    episode_timeout_s: float = 600.0
    on_timeout: Literal["drop", "score"] = "drop"
    max_retries: int = 3
    max_concurrent: int = 512
    state_columns: list[str] = []
    sampling: SamplingConfig = SamplingConfig()
    echo: EchoConfig | None = None
    algorithm: OverridesConfig = OverridesConfig()
    curriculum: CurriculumConfig | None = None
    members: dict[str, SeatConfig] = {}
    """Multi-agent: who plays; the policy where a member is not named."""
    drop_members: list[str] = ["judge"]
    """Multi-agent: members that never train."""


class EvalConfig(RoleConfig):
    """An eval environment and when it is played."""

    environment: EnvironmentConfig
    interval: int
    num_examples: int
    group_size: int
    at_start: bool = True


class CheckpointConfig(RoleConfig):
    """When checkpoints are saved, and which are kept."""

    interval: int
    keep_last: int
    keep_every: int | None = None


class SftConfig(RoleConfig):
    """Whose tokens are targets of mode sft."""

    train_roles: list[Literal["system", "user", "assistant", "tool"]] = ["assistant"]
    tool_names: list[str] | None = None
    """Only for role ``tool``: outputs of these tools; None means all."""


class BatchConfig(RoleConfig):
    """How episodes become batches."""

    mode: Literal["rl", "sft", "opd"] = "rl"
    """What trains: what the policy sampled, by its rewards (rl) or by a teacher's logprobs (opd); or conversations of
    somebody else's, by cross-entropy (sft)."""
    sft: SftConfig = SftConfig()
    """For mode sft."""
    group_size: int
    batch_size: int | None = None
    """Episodes a step."""
    token_batch_size: int | None = None
    """Or: trainable tokens a step (exactly one of the two is set)."""
    max_staleness: int
    oversampling: float = 1.0
    max_branches: int = 8
    aggregation: Literal["token", "episode"] = "token"
    rl_weight: float = 1.0
    echo_normalizer: Literal["globalTokens", "perSequence"] = "globalTokens"
    echo_warmup_steps: int = 0
    """Steps over which every alpha rises linearly to its full value; 0: full from the first step."""
    advantage: AdvantageConfig = AdvantageConfig()
    filters: list[FilterConfig] = []
    seq_len: int
    """Tokens of one micro-batch at the most."""
    num_ranks: int
    """Data-parallel ranks that pull batches."""

    def of(self, environment: EnvironmentConfig) -> "BatchConfig":
        """The same as it holds for the episodes of one environment."""
        own = environment.algorithm
        changed = {name: value for name in type(own).model_fields if (value := getattr(own, name)) is not None}
        return self.model_copy(update=changed) if changed else self


class TeacherConfig(RoleConfig):
    """Another model behind an OpenAI-compatible URL. Its key comes from the environment."""

    url: str
    """Base URL."""
    model: str
    """Name that it serves the model under."""
    request_deadline_s: float = 600.0
    """Of one request."""
    busy_deadline_s: float = 120.0
    """Of all tries of one request, while the teacher cannot be reached or is busy."""
    start_deadline_s: float = 600.0
    """The same at the run's start, when the teacher may still load."""


class EngineDiscovery(RoleConfig):
    """Where engines are looked for; every address that a name resolves to is an engine."""

    names: list[str]
    """``host:port``."""
    interval_s: float = 2.0
    extra_headers: dict[str, str] = {}


class WandbConfig(RoleConfig):
    """The run at Weights & Biases; the API key comes from the environment."""

    project: str
    entity: str | None = None
    base_url: str | None = None
    """Of a server of one's own."""
    mode: Literal["online", "offline"] = "online"


class MonitorsConfig(RoleConfig):
    """Where metrics go besides ``/metrics`` and records."""

    wandb: WandbConfig | None = None
    tensorboard: bool = False


class OrchestratorConfig(RoleConfig):
    """Everything the orchestrator needs but identity and secrets."""

    run_dir: str
    host: str = "127.0.0.1"
    port: int
    model: ModelConfig
    seed: int
    max_steps: int
    batch: BatchConfig
    train: list[EnvironmentConfig]
    evals: list[EvalConfig] = []
    engines: EngineDiscovery
    teacher: TeacherConfig | None = None
    """For mode opd; in mode sft who plays the episodes, None where all conversations are given."""
    weight_mode: Literal["http", "disk"]
    checkpoint: CheckpointConfig
    record: bool = False
    """Keep a copy of every sealed batch under ``record/``, to be trained on again without engines."""
    record_episodes: bool = False
    """Write every train episode of a step to ``records/attempt_N/episodes/``, as Parquet."""
    monitors: MonitorsConfig = MonitorsConfig()
    python_path: list[str] = []
    """Folders with user code, put on sys.path of environment workers."""
    pause_lease_s: float = 30.0
    update_deadline_s: float = 300.0
    part_deadline_s: float = 600.0
    max_consecutive_failures: int = 64
    """Episodes that may fail one after the other (all environments) before the run fails."""
    max_empty_batches: int = 3


class OptimizerConfig(RoleConfig):
    """Optimizer and learning-rate schedule."""

    type: Literal["adamw", "muon", "signSgd", "sgd"] = "adamw"
    lr: float = 1.0e-6
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    """Share of ``lr`` that linear and cosine schedules end at."""


class LossConfig(RoleConfig):
    """The trainer's policy-gradient loss; ECHO's cross-entropy has no settings."""

    type: Literal["dppo", "ipo", "grpo", "cispo", "reinforce", "custom", "opd"] = "dppo"
    """``opd``: of mode opd, towards a teacher's logprobs."""
    mask_low: float = 0.2
    """For dppo, ipo and opd."""
    mask_high: float = 0.2
    """For dppo and ipo."""
    clip_low: float = 0.2
    """For grpo and cispo."""
    clip_high: float = 0.28
    """For grpo and cispo."""
    kl_tau: float = 1.0e-3
    """For all but custom."""
    hook: HookConfig | None = None
    """For custom, and only for it."""


class TrainerConfig(RoleConfig):
    """Everything a trainer rank needs but identity, secrets and its rank (torchrun's variables)."""

    run_dir: str
    orchestrator_url: str
    model: ModelConfig
    seed: int
    max_steps: int
    seq_len: int
    loss: LossConfig = LossConfig()
    losses: dict[str, LossConfig] = {}
    """Of environments that have their own, by name."""
    python_path: list[str] = []
    """Folders with user code, put on sys.path for a custom loss."""
    optimizer: OptimizerConfig = OptimizerConfig()
    compile: bool = False
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    replicate: int = 1
    """Replicas of the sharded model (HSDP); ranks = replicate x shard."""
    weight_mode: Literal["http", "disk"]
    publish_host: str = "127.0.0.1"
    """Address that rank 0 serves weights on."""
    advertise_host: str | None = None
    """Name of that address for engines; None: the same."""
    metrics_port: int = 0
    """Rank r serves /metrics, /state and /healthz on ``metrics_port + r``; 0: any free port."""
    step_timeout_s: float = 1800.0
    token_export_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between two exports of trained tokens; None: there are none."""
    probe_tokens: Annotated[int, Field(ge=2)] = 32


class InferenceConfig(RoleConfig):
    """Everything that one engine's command line needs."""

    model: ModelConfig
    served_name: str
    host: str = "127.0.0.1"
    port: int
    tensor_parallel: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    extra_args: list[str] = []


class ModelSource(RoleConfig):
    """Which model a run trains, and how it gets to the run's volume."""

    name: str
    """As in the manifest: a hub id, or a path."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    path: str
    """Where the model's folder is, or for a hub id the link to it."""
    store: str | None = None
    """Folder for models fetched from the hub, ``<name>@<commit>`` each; None: the model is a path."""


class PrepareConfig(RoleConfig):
    """Everything that the start of an attempt needs but identity, resume policy and the hub's token."""

    run_dir: str
    model: ModelSource
    python_path: list[str] = []
    """Folders with user code."""
    orchestrator: OrchestratorConfig
    """What the role will be started with; its folders may be elsewhere in its own pod."""
    trainer: TrainerConfig
    """The same."""


class RoleConfigs(RoleConfig):
    """The three configs that one manifest and one placement give."""

    orchestrator: OrchestratorConfig
    trainer: TrainerConfig
    inference: list[InferenceConfig]
