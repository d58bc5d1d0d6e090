"""The config of the trainer."""

from typing import Annotated, Literal

from pydantic import Field

from echorl_core.config.algorithm import LossConfig
from echorl_core.config.base import RoleConfig
from echorl_core.config.inference import Quantization
from echorl_core.config.model import ModelConfig


class CheckpointConfig(RoleConfig):
    """When checkpoints are saved, and which are kept."""

    interval: int
    keep_last: int
    keep_every: int | None = None


class MemoryConfig(RoleConfig):
    """Copies of the training state in memory that outlives a rank's process, and restarts from them."""

    every_steps: Annotated[int, Field(ge=1)] = 1
    limit_bytes: int
    """That all ranks' copies may take together: two of each rank's state, with ``mirror`` five."""
    mirror: bool = False
    """Whether each pod's newest copies are also held by a neighbour, for a pod that takes the place of a lost one."""
    replaced_within_s: float = 600.0
    """With ``mirror``: longest time that the other pods wait for it."""
    max_restarts: int = 5
    """Restarts from them between two resets."""
    backoff_s: float = 10.0
    """Before the second restart in a row; doubled at each further one."""
    reset_after_steps: int = 20
    passed_on: list[int] = []
    """Exit codes of ranks that a rule of ``failurePolicy`` is about: whoever knows the rules decides."""


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
    state_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of adamw's and muon's moments between steps; int8: codes with a scale per block of 256."""
    cpu_offload: bool = False
    """Whether moments lie in host memory between steps."""


class TrainerConfig(RoleConfig):
    """Everything a trainer rank needs but identity, secrets and its rank (torchrun's variables)."""

    run_dir: str
    orchestrator_url: str
    model: ModelConfig
    seed: int
    max_steps: int
    seq_len: int
    mode: Literal["rl", "sft", "opd"] = "rl"
    """The run's mode, for exported tokens; how the trainer trains, the loss and the batches say."""
    loss: LossConfig = LossConfig()
    losses: dict[str, LossConfig] = {}
    """Losses of environments that have their own, by the environment's name."""
    python_path: list[str] = []
    """Folders with user code, put on sys.path for a custom loss."""
    optimizer: OptimizerConfig = OptimizerConfig()
    compile: bool = False
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    gradient_accumulation: Literal["sharded", "unsharded"] = "sharded"
    """Whether every micro-batch's gradient is reduced over the shards, or a step's once, from whole gradients."""
    replicate: int = 1
    """Replicas of the sharded model (HSDP); ranks = replicate x shard."""
    context: int = 1
    """Consecutive ranks, all of one replica, that share their packs."""
    expert: int = 1
    """Consecutive ranks, all of one replica, that have the experts of a mixture among them."""
    router_replay: bool = False
    """Whether batches carry the experts that engines chose; routers take them."""
    weight_mode: Literal["http", "disk", "nccl", "auto"]
    """``auto``: nccl or http, by ``echorl_core.links``."""
    engines_on_gpus: bool = False
    """For ``auto``."""
    engine_quantization: Quantization | None = None
    """How engines hold the published weights."""
    weight_delta: Literal["auto", "never"] = "auto"
    """Whether versions are published as what they changed, too."""
    publish_host: str = "127.0.0.1"
    """Address that rank 0 serves weights on."""
    advertise_host: str | None = None
    """Name of that address for engines; None: the same."""
    metrics_port: int = 0
    """Rank r serves /metrics, /state and /healthz on ``metrics_port + r``; 0: any free port."""
    step_timeout_s: float = 1800.0
    async_save: bool = True
    """Whether checkpoints are written beside the loop, from a copy of the state in host memory."""
    memory: MemoryConfig | None = None
    """None: a rank's process that ends takes its state along."""
    weights_only_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between two exports of the weights alone; None: there are none."""
    weights_only_keep_last: Annotated[int, Field(ge=1)] = 5
    """Newest exports of the weights alone that stay."""
    token_export_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between two exports of trained tokens; None: there are none."""
    profile_steps: list[int] = []
    """Steps that are traced."""
    probe_tokens: Annotated[int, Field(ge=2)] = 32
