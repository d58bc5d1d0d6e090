"""Whatever the keys hold: a manifest that pydantic accepts and that reads back, or one named error. Never a secret."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echorl_cli.convert.conversion import Options, converted
from echorl_cli.convert.keys import KEYS
from echorl_cli.convert.problem import ConversionError
from echorl_cli.convert.renames import RENAMES
from echorl_cli.convert.text import manifest_text, on_one_line
from echorl_cli.convert.tree import location
from echorl_cli.yaml_text import parse_yaml
from echorl_manifest import EchoRLRun, problems
from echorl_testing.manifests.prime_rl import TYPES, concrete, converted_copy, smallest, with_value

PATHS = sorted({concrete(key.key.removesuffix(".*")) for key in KEYS} | {concrete(rename.other) for rename in RENAMES})
LARGE = st.sampled_from([10**400, -(10**400), float("nan"), float("inf")])
SCALARS = st.none() | st.booleans() | st.integers(-3, 70000) | LARGE | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)

# Keys whose fields are carried out today, with values that prime-rl takes.
SUPPORTED = {
    "model.name": st.sampled_from(["Qwen/Qwen3-4B", "/models/mine", "./model"]),
    "seq_len": st.integers(512, 32768),
    "max_steps": st.integers(0, 10000),
    "ckpt.keep_last": st.integers(1, 9),
    "ckpt.resume_step": st.integers(-1, 40),
    "weight_broadcast.type": st.just("filesystem"),
    "trainer.loss.dppo_mask_low": st.floats(0, 1),
    "trainer.loss.kl_tau": st.floats(0, 1),
    "trainer.loss.adv_tau": st.floats(0.01, 4),
    "trainer.optim.lr": st.floats(1e-8, 1e-2),
    "trainer.optim.weight_decay": st.floats(0, 1),
    "trainer.optim.betas1": st.floats(0, 0.999),
    "trainer.optim.max_norm": st.none() | st.floats(0.1, 10),
    "trainer.optim.type": st.sampled_from(["adamw", "sgd"]),
    "trainer.scheduler.type": st.sampled_from(["constant", "linear", "cosine"]),
    "trainer.scheduler.warmup_steps": st.integers(0, 50),
    "trainer.model.ac": st.sampled_from([{}, {"mode": "selective"}, {"mode": "full", "freq": 2}]),
    "trainer.model.compile": st.just({}),
    "trainer.model.attn": st.just("sdpa"),
    "orchestrator.group_size": st.sampled_from([1, 2, 4, 8, 16]),
    "orchestrator.max_off_policy_steps": st.integers(0, 20),
    "orchestrator.oversampling_factor": st.floats(0.5, 4),
    "orchestrator.post_batch_filters": st.sampled_from([[], [{"type": "zero_advantage", "enforce": False}]]),
    "orchestrator.renderer.name": st.sampled_from(["auto", "qwen3"]),
    "orchestrator.train.sampling.temperature": st.floats(0.1, 2),
    "orchestrator.train.sampling.max_tokens": st.integers(1, 4096),
    "orchestrator.train.source[0].ratio": st.floats(0.1, 5),
    "orchestrator.train.source[0].args": st.dictionaries(st.text(string.ascii_lowercase, min_size=1), st.integers()),
    "orchestrator.train.source[0].num_workers": st.just("auto") | st.integers(1, 64),
    "orchestrator.train.source[0].timeout": st.integers(1, 4000) | st.floats(0.001, 4000),
    "orchestrator.train.source[0].echo": st.sampled_from(
        [{"tool": {}}, {"user": {"alpha": 0.5}, "system": {"alpha": 0}}]
    ),
    "orchestrator.eval.interval": st.integers(1, 500),
    "orchestrator.eval.rollouts_per_example": st.integers(1, 16),
    "orchestrator.eval.sampling": st.fixed_dictionaries(
        {}, optional={"temperature": st.floats(0, 2), "top_k": st.just(-1)}
    ),
    "deployment.num_train_gpus": st.integers(1, 8),
    "deployment.num_infer_gpus": st.sampled_from([2, 4, 8]),
    "inference.parallel.tp": st.sampled_from([1, 2]),
    "inference.gpu_memory_utilization": st.floats(0.1, 0.95),
}


@given(st.fixed_dictionaries({}, optional=SUPPORTED))
@settings(max_examples=60, deadline=None)
def test_every_supported_combination_is_a_valid_manifest(chosen):
    tree = smallest()
    for path, value in chosen.items():
        tree = with_value(tree, location(path), value)
    conversion = converted_copy(tree)
    assert problems(conversion.document) == []
    assert EchoRLRun.model_validate(parse_yaml(manifest_text(conversion, []))) == conversion.run


@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), max_size=4), st.booleans())
@example([("orchestrator.eval.source[0].args", {"\x85": "\u2028"})], False)
@example([("orchestrator.eval.source[0].legacy.args", {"": 10**400})], False)
@settings(max_examples=120, deadline=None)
def test_any_value_at_any_key_gives_a_manifest_or_named_problems(entries, keep_going):
    tree = smallest()
    try:
        for path, value in entries:
            tree = with_value(tree, location(path), value)
    except (KeyError, IndexError, TypeError, AttributeError):
        return  # an earlier value stands where a table would have to
    try:
        conversion = converted(tree, Options(types=TYPES, keep_going=keep_going))
    except ConversionError as error:
        named = [problem.path and problem.accepted for problem in error.problems]
    else:
        text = manifest_text(conversion, [])
        named = [EchoRLRun.model_validate(parse_yaml(text)) == conversion.run]
    assert named
    assert all(named)


ANYWHERE = [path for path in PATHS if not path.endswith((".name", ".id"))]


@given(
    st.sampled_from(ANYWHERE),
    st.sampled_from(["api_key", "HF_TOKEN", "headers", "Authorization", "password"]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_no_secret_is_ever_shown(path, name, keep_going):
    secret = "Zx9Qw8Er7Ty6Ui5Op4"
    tree = with_value(smallest(), location(path), {name: secret, "list": [{name: secret}], "plain": f"Bearer {secret}"})
    shown = everything_said(tree, keep_going)
    assert secret not in shown


def everything_said(tree, keep_going):
    try:
        conversion = converted(tree, Options(types=TYPES, keep_going=keep_going))
    except ConversionError as error:
        return str(error)
    lines = "\n".join(on_one_line(str(line)) for line in conversion.lines)
    return f"{manifest_text(conversion, [])}\n{lines}"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-Zx9Qw8Er7Ty6",
        "hf_Zx9Qw8Er7Ty6Ui5",
        "ghp_Zx9Qw8Er7Ty6Ui5",
        "AKIAZX9QW8ER7TY6UI5O",
        "https://user:Zx9Qw8Er7@teacher/v1",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx",
    ],
)
@pytest.mark.parametrize(
    "path",
    [
        "model.name",
        "wandb.project",
        "slurm.account",
        "no_such_key",
        "orchestrator.teacher.client.base_url",
        "orchestrator.train.source[0].args.note",
        "inference.vllm.download_dir",
        "inference.server.host",
    ],
)
@pytest.mark.parametrize("keep_going", [False, True])
def test_what_looks_like_a_secret_is_one_under_any_key(secret, path, keep_going):
    assert secret not in everything_said(with_value(smallest(), location(path), secret), keep_going)
