"""The config of the orchestrator."""

from typing import Literal

from echorl_core.config.algorithm import AdvantageConfig, FilterConfig, SftConfig, TeacherConfig
from echorl_core.config.base import RoleConfig
from echorl_core.config.environment import EnvironmentConfig, EvalConfig
from echorl_core.config.model import ModelConfig
from echorl_core.config.sandboxes import SandboxesConfig
from echorl_core.config.trainer import CheckpointConfig


class BatchConfig(RoleConfig):
    """How episodes become batches."""

    mode: Literal["rl", "sft", "opd"] = "rl"
    """What trains: what the policy sampled, by its rewards (rl) or by a teacher's logprobs (opd); or conversations of
    somebody else's, by cross-entropy (sft)."""
    sft: SftConfig = SftConfig()
    """Settings of mode sft."""
    group_size: int
    batch_size: int | None = None
    """Episodes that one step trains on."""
    token_batch_size: int | None = None
    """Or: trainable tokens a step (exactly one of the two is set)."""
    max_staleness: int
    oversampling: float = 1.0
    max_branches: int = 8
    aggregation: Literal["token", "episode"] = "token"
    reward_per_branch: Literal["full", "split"] = "full"
    """``split``: the trained branches of an episode weigh as much together as one of them alone would."""
    rl_weight: float = 1.0
    echo_normalizer: Literal["globalTokens", "perSequence"] = "globalTokens"
    echo_warmup_steps: int = 0
    """Steps over which every alpha rises linearly to its full value; 0: full from the first step."""
    advantage: AdvantageConfig = AdvantageConfig()
    filters: list[FilterConfig] = []
    seq_len: int
    """Tokens of one micro-batch at the most."""
    num_ranks: int
    """Trainer ranks that pull batches."""
    context: int = 1
    """Consecutive ranks that are given the same batch."""

    def of(self, environment: EnvironmentConfig) -> "BatchConfig":
        """The batch's settings as they hold for the episodes of one environment."""
        own = environment.algorithm
        changed = {name: value for name in type(own).model_fields if (value := getattr(own, name)) is not None}
        return self.model_copy(update=changed) if changed else self


class EngineDiscovery(RoleConfig):
    """Where engines are looked for; every address that a name resolves to is an engine."""

    names: list[str]
    """``host:port``."""
    interval_s: float = 2.0
    gpus: int = 1
    """Of one engine; 1 without any."""
    extra_headers: dict[str, str] = {}


class WandbConfig(RoleConfig):
    """The run at Weights & Biases; the API key comes from the environment."""

    project: str
    entity: str | None = None
    base_url: str | None = None
    """Base URL of a server of one's own."""
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
    weight_mode: Literal["http", "disk", "nccl", "auto"]
    router_replay: bool = False
    """Whether engines return the experts of a mixture that tokens went to, and samples carry them."""
    checkpoint: CheckpointConfig
    record: bool = False
    """Keep a copy of every sealed batch under ``record/``, to be trained on again without engines."""
    record_episodes: bool = False
    """Write every train and eval episode to ``episodes/`` and ``eval_episodes/`` of the records, as Parquet."""
    turn_journal: bool = False
    """Keep turns of train episodes in ``attempts/N/turns/``, for another process of the attempt to go on from."""
    monitors: MonitorsConfig = MonitorsConfig()
    sandboxes: SandboxesConfig | None = None
    """What agents run in; None: no environment may ask for any."""
    python_path: list[str] = []
    """Folders with user code, put on sys.path of environment workers."""
    pause_lease_s: float = 30.0
    update_deadline_s: float = 300.0
    part_deadline_s: float = 600.0
    max_consecutive_failures: int = 64
    """Episodes that may fail one after the other (all environments) before the run fails."""
    max_empty_batches: int = 3
