"""Every default of prime-rl is in the converted manifest, or told; EchoRL's own takes its place nowhere in silence."""

import pytest

from echorl_cli.convert.draft import Kind
from echorl_cli.convert.tree import location
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import role_configs
from echorl_testing.manifests.prime_rl import concrete, converted_copy, smallest, with_value
from tools.migration_page import page

TARGETS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
TRAIN, EVAL = "orchestrator.train", "orchestrator.eval"
# What prime-rl's own resolution of a file gives to keys that the file does not set.
DEFAULTS = {
    "model.name": "Qwen/Qwen3-0.6B",
    "seq_len": 2048,
    "orchestrator.batch_size": 128,
    "orchestrator.group_size": 1,
    "orchestrator.max_off_policy_steps": 8,
    "orchestrator.max_async_level": 1,
    "orchestrator.strict_async_level": False,
    "orchestrator.concurrency.max_inflight": 1024,
    "orchestrator.seed": 42,
    "orchestrator.renderer.name": "auto",
    "orchestrator.algo.type": "grpo",
    "orchestrator.post_batch_filters": [{"type": "zero_advantage", "enforce": True}],
    "orchestrator.buffer.online_difficulty_filtering": False,
    f"{TRAIN}.max_retries": 3,
    f"{TRAIN}.sampling.temperature": 1.0,
    f"{TRAIN}.sampling.top_p": 1.0,
    f"{TRAIN}.source[].num_workers": "auto",
    f"{EVAL}.interval": 100,
    f"{EVAL}.group_size": 1,
    f"{EVAL}.skip_first_step": False,
    f"{EVAL}.max_retries": 3,
    "trainer.loss.type": "default",
    "trainer.loss.dppo_mask_low": 0.2,
    "trainer.loss.dppo_mask_high": 0.2,
    "trainer.loss.adv_tau": 1.0,
    "trainer.loss.kl_tau": 1e-3,
    "trainer.optim.type": "adamw",
    "trainer.optim.lr": 1e-6,
    "trainer.optim.weight_decay": 0.01,
    "trainer.optim.betas1": 0.9,
    "trainer.optim.betas2": 0.999,
    "trainer.optim.max_norm": 1.0,
    "trainer.scheduler.type": "constant",
    "trainer.model.seq_len": 2048,
    "trainer.model.compile": {},
    "trainer.model.ac": {"mode": "full"},
    "trainer.model.ac_offloading": {},
    "trainer.model.optim_cpu_offload": True,
    "trainer.model.fsdp_cpu_offload": False,
    "trainer.model.optimization_dtype": "float32",
    "trainer.model.reduce_dtype": "float32",
    "trainer.model.dp_replicate": 1,
    "trainer.model.cp": 1,
    "trainer.dist_timeout_seconds": 600,
    "trainer.max_concurrent_runs": 1,
    "trainer.enable_token_export": False,
    "weight_broadcast.type": "filesystem",
    "inference.enable_fp32_lm_head": True,
    "inference.parallel.tp": 1,
}
# Defaults of keys that mean something beside others alone.
BESIDE = [
    ({"trainer.loss.type": "ipo"}, "trainer.loss.ipo_threshold", 0.1),
    ({"trainer.optim.type": "muon"}, "trainer.optim.betas2", 0.95),
    ({"trainer.optim.type": "muon"}, "trainer.optim.mu", 0.95),
    ({"trainer.optim.type": "sgd"}, "trainer.optim.momentum", 0.9),
    ({"trainer.scheduler.type": "cosine"}, "trainer.scheduler.warmup_steps", 10),
    ({"trainer.scheduler.type": "cosine"}, "trainer.scheduler.min_lr", 0.0),
    ({"trainer.scheduler.type": "linear"}, "trainer.scheduler.decay_steps", 10),
    ({"trainer.model.lora": {}}, "trainer.model.lora.rank", 16),
    ({"trainer.model.lora": {}}, "trainer.model.lora.alpha", 32.0),
    ({"trainer.model.lora": {}}, "trainer.model.lora.dropout", 0.0),
    ({"trainer.model.lora": {}}, "trainer.model.lora.target_modules", TARGETS),
    ({f"{TRAIN}.source[0].echo": {"tool": {}}}, f"{TRAIN}.source[].echo.tool.alpha", 1.0),
    ({"orchestrator.algo.type": "echo"}, "orchestrator.algo.roles", {"tool": {"alpha": 0.1}}),
    ({"orchestrator.algo.type": "rae"}, "orchestrator.algo.decay", 0.95),
    ({f"{TRAIN}.source[0].algo.type": "rae"}, f"{TRAIN}.source[].algo.decay", 0.95),
    ({"orchestrator.advantage.type": "ema_per_member"}, "orchestrator.advantage.momentum", 0.9),
    ({"orchestrator.filters": [{"type": "gibberish"}]}, "orchestrator.filters[].enforce", False),
    ({"monitors.wandb": {}}, "monitors.wandb.project", "prime-rl"),
    ({"monitors.wandb": {}}, "monitors.wandb.offline", False),
    ({"ckpt": {"interval": 10}}, "ckpt.keep_last", None),
    ({"data": {"source": [{"dataset": "words"}]}}, "data.batch_size", 128),
    ({"data": {"source": [{"dataset": "words"}]}}, "data.seq_len", 128),
    ({"data": {"source": [{"dataset": "words"}]}}, "data.loss_mask.assistant", True),
]
# Keys without counterpart whose default is what EchoRL always does.
ALIKE = {
    "orchestrator.strict_async_level",
    "trainer.model.fsdp_cpu_offload",
    "trainer.model.optimization_dtype",
    "trainer.model.reduce_dtype",
    "trainer.optim.mu",
    "trainer.model.lora.dropout",
    "trainer.max_concurrent_runs",
    # Bounded by other means: stallPolicy, which is told.
    "trainer.dist_timeout_seconds",
}
CASES = [*(({}, key, value) for key, value in DEFAULTS.items()), *BESIDE]


def file_with(values):
    tree = smallest()
    if "data" in values:
        tree = {"max_steps": 100}
    for path, value in values.items():
        tree = with_value(tree, location(concrete(path)), value)
    return tree


def resolved(conversion):
    """What the roles of the run do."""
    return role_configs(conversion.run, example_placement(conversion.run)).model_dump()


def told(conversion, key):
    announced = {Kind.DEFAULT, Kind.TO_FILL_IN}
    return any(line.kind in announced and key.startswith(line.subject) for line in conversion.lines)


@pytest.mark.parametrize(("beside", "key", "value"), CASES, ids=[key for _, key, _ in CASES])
def test_a_key_that_is_not_set_means_what_it_means_with_prime_rl_s_default(beside, key, value):
    implicit, explicit = converted_copy(file_with(beside)), converted_copy(file_with({**beside, key: value}))
    unanswered = any(
        line.kind is Kind.NO_COUNTERPART and line.subject.startswith(concrete(key)) for line in explicit.lines
    )
    if unanswered and key not in ALIKE:
        assert told(implicit, key)
    if resolved(implicit) != resolved(explicit):
        assert told(implicit, key)


# What the manifest says of its own, where prime-rl has nothing of the kind, or knows only while it runs.
WITHOUT_KEY = {
    "spec.environments.train[0].episodeTimeout": "without limit",
    "spec.environments.eval[0].sampling": "generation_config.json",
    "spec.stallPolicy.noStepFor": "waits for ever",
    "ckpt.interval": "saves none",
}


@pytest.mark.parametrize("subject", WITHOUT_KEY)
def test_what_has_no_default_in_prime_rl_is_told(subject):
    [line] = [line for line in converted_copy(smallest()).lines if line.subject == subject]
    assert line.kind is Kind.DEFAULT
    assert WITHOUT_KEY[subject] in line.text


@pytest.mark.parametrize(
    ("values", "subject"),
    [
        ({f"{TRAIN}.source[].timeout": 60}, "spec.environments.train[0].episodeTimeout"),
        ({f"{EVAL}.sampling": {"temperature": 0.6, "top_p": 0.9}}, "spec.environments.eval[0].sampling"),
        ({"ckpt.interval": 5}, "ckpt.interval"),
        ({"trainer.model.optim_cpu_offload": False}, "trainer.model.optim_cpu_offload"),
        ({"weight_broadcast.type": "filesystem"}, "weight_broadcast.type"),
        ({"data": {"source": [{"dataset": "words"}]}}, "orchestrator.max_async_level"),
    ],
)
def test_nothing_is_told_of_a_default_that_does_not_hold(values, subject):
    assert subject not in [
        line.subject for line in converted_copy(file_with(values)).lines if line.kind is Kind.DEFAULT
    ]


def test_null_turns_off_what_is_on_by_default():
    spec = converted_copy(file_with({"trainer.model.compile": None, "trainer.model.ac": None})).document["spec"]
    assert (spec["trainer"]["compile"], spec["trainer"]["activationCheckpointing"]) == (False, "none")


def test_the_page_has_every_default_that_is_not_echorl_s_own():
    table = page().partition("## Defaults")[2].partition("## Spellings")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    implicit = converted_copy(smallest())
    for line in implicit.lines:
        if line.kind is Kind.DEFAULT:
            name = line.subject.rpartition(".")[2]
            assert any(name in row for row in rows), line.subject
