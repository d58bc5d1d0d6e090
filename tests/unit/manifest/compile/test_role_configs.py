"""What role_configs derives; the golden files show the whole of it."""

import dataclasses

import pytest

from echorl_manifest import load
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import role_configs
from echorl_testing.manifests.documents import full, shortest, with_value

TRAIN = "spec.environments.train.0"


def compiled(document, **placed):
    run = load(document)
    return role_configs(run, dataclasses.replace(example_placement(run), **placed))


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_an_image_is_played_at_its_servers_address(kind):
    image = "openenv:registry.example.org/games/wordle:1"
    document = with_value(full(), f"spec.environments.{kind}.0.type", image)
    name = document["spec"]["environments"][kind][0]["name"]
    orchestrator = compiled(document, environment_urls={name: "http://served:8000"}).orchestrator
    first, *others = orchestrator.train if kind == "train" else [one.environment for one in orchestrator.evals]
    assert first.type == "openenv:http://served:8000"
    assert not any("served" in one.type for one in others)


@pytest.mark.parametrize(("concurrent", "workers"), [(1, 1), (256, 1), (257, 2), (512, 2), (1024, 4)])
def test_auto_workers(concurrent, workers):
    configs = compiled(with_value(shortest(), f"{TRAIN}.maxConcurrent", concurrent))
    assert configs.orchestrator.train[0].workers == workers


@pytest.mark.parametrize(("replicas", "gpus", "ranks"), [(1, 1, 1), (2, 0, 2), (2, 4, 8), (1, 0, 1)])
def test_ranks(replicas, gpus, ranks):
    document = with_value(shortest(), "spec.trainer", {"replicas": replicas, "gpusPerReplica": gpus})
    assert compiled(document).orchestrator.batch.num_ranks == ranks


@pytest.mark.parametrize(("gpus", "compiles", "checkpointing"), [(0, False, "none"), (1, True, "selective")])
def test_steps_are_compiled_and_spare_memory_on_gpus(gpus, compiles, checkpointing):
    document = with_value(shortest(), "spec.trainer", {"gpusPerReplica": gpus})
    trainer = compiled(document).trainer
    assert (trainer.compile, trainer.activation_checkpointing) == (compiles, checkpointing)
    chosen = {"gpusPerReplica": gpus, "compile": not compiles, "activationCheckpointing": "full"}
    trainer = compiled(with_value(document, "spec.trainer", chosen)).trainer
    assert (trainer.compile, trainer.activation_checkpointing) == (not compiles, "full")


def test_steps_are_not_compiled_where_experts_are_split():
    document = with_value(shortest(), "spec.trainer", {"gpusPerReplica": 4, "parallel": {"expert": 4}})
    trainer = compiled(document).trainer
    assert (trainer.expert, trainer.compile) == (4, False)


@pytest.mark.parametrize(
    ("explicit", "seq_len", "of_model", "length", "micro_batch"),
    [
        (None, None, None, 4096, 4096),
        (None, None, 512, 512, 512),
        (None, None, 32768, 4096, 4096),
        (None, 1024, None, 1024, 1024),
        (None, 8192, None, 4096, 8192),
        (600, None, 512, 600, 600),
        (600, 1200, None, 600, 1200),
    ],
)
def test_lengths(explicit, seq_len, of_model, length, micro_batch):
    document = with_value(shortest(), "spec.model.maxModelLen", explicit)
    document = with_value(document, "spec.trainer", {"seqLen": seq_len})
    configs = compiled(document, model_max_len=of_model)
    models = [configs.orchestrator.model, configs.trainer.model, *(engine.model for engine in configs.inference)]
    assert {model.max_model_len for model in models} == {length}
    assert configs.trainer.seq_len == configs.orchestrator.batch.seq_len == micro_batch


def test_batch_defaults_to_16_groups():
    assert compiled(with_value(shortest(), "spec.algorithm.groupSize", 6)).orchestrator.batch.batch_size == 96


def test_holdout_side_follows_the_list():
    configs = compiled(full()).orchestrator
    assert (configs.train[0].holdout_side, configs.evals[0].environment.holdout_side) == ("train", "eval")


def test_placement_reaches_every_role():
    configs = compiled(
        full(),
        run_dir="/runs/x",
        model_path="/m",
        renderer="compact",
        device="cpu",
        orchestrator_host="0.0.0.0",
        orchestrator_port=1,
        orchestrator_url="http://o:1",
        publish_host="0.0.0.0",
        advertise_host="trainer-0",
        metrics_port=9,
        python_path=("/code", "/more"),
        engine_names=("engines:8000",),
    )
    orchestrator, trainer, engine = configs.orchestrator, configs.trainer, configs.inference[0]
    assert (orchestrator.run_dir, orchestrator.host, orchestrator.port) == ("/runs/x", "0.0.0.0", 1)
    assert orchestrator.engines.names == ["engines:8000"]
    assert orchestrator.python_path == ["/code", "/more"]
    assert (trainer.orchestrator_url, trainer.publish_host, trainer.advertise_host) == (
        "http://o:1",
        "0.0.0.0",
        "trainer-0",
    )
    assert trainer.metrics_port == 9
    assert engine.device == "cpu"
    assert {model.path for model in (orchestrator.model, trainer.model, engine.model)} == {"/m"}
    assert {model.renderer for model in (orchestrator.model, trainer.model, engine.model)} == {"compact"}


def test_each_engine_gets_its_address():
    configs = compiled(full())
    addresses = [f"{engine.host}:{engine.port}" for engine in configs.inference]
    assert configs.orchestrator.engines.names == addresses
    assert len(set(addresses)) == 3


def test_same_input_same_output():
    assert compiled(full()) == compiled(full())


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ({}, {"type": "dppo", "mask_low": 0.2, "mask_high": 0.2, "kl_tau": 1e-3}),
        ({"type": "ipo", "maskLow": 0.1}, {"type": "ipo", "mask_low": 0.1, "mask_high": 0.3, "kl_tau": 1e-3}),
        ({"type": "grpo", "klTau": 0}, {"type": "grpo", "clip_low": 0.2, "clip_high": 0.28, "kl_tau": 0.0}),
        ({"type": "cispo", "clipHigh": 4.0}, {"type": "cispo", "clip_low": 1.0, "clip_high": 4.0, "kl_tau": 1e-3}),
        ({"type": "reinforce", "klTau": 0.1}, {"type": "reinforce", "kl_tau": 0.1}),
    ],
)
def test_every_loss_has_defaults_of_its_own(loss, settings):
    found = compiled(with_value(shortest(), "spec.algorithm.loss", loss)).trainer.loss
    assert {name: getattr(found, name) for name in settings} == settings
    assert found.hook is None


def test_a_custom_loss_and_the_users_folders_reach_the_trainer():
    loss = {"type": "custom", "import": "mine.losses:loss", "kwargs": {"beta": 0.5}}
    found = compiled(with_value(shortest(), "spec.algorithm.loss", loss), python_path=("/code",)).trainer
    assert (found.loss.type, found.loss.hook.import_path) == ("custom", "mine.losses:loss")
    assert found.loss.hook.kwargs == {"beta": 0.5}
    assert found.python_path == ["/code"]


def test_length_shaping_and_its_weights():
    shaping = {"by": "tokens", "environmentWeight": 0}
    document = with_value(shortest(), "spec.algorithm.advantage", {"lengthShaping": shaping})
    found = compiled(document).orchestrator.batch.advantage
    assert found.type == "groupMean"
    assert found.length_shaping.model_dump() == {
        "by": "tokens",
        "completion_weight": 1.0,
        "environment_weight": 0.0,
    }


@pytest.mark.parametrize("kind", ["none", "maxRl"])
def test_advantages_without_settings(kind):
    found = compiled(with_value(shortest(), "spec.algorithm.advantage", {"type": kind})).orchestrator.batch.advantage
    assert (found.type, found.length_shaping, found.hook) == (kind, None, None)


def test_a_custom_advantage_reaches_the_orchestrator():
    advantage = {"type": "custom", "import": "mine:best", "kwargs": {"top": 2}}
    found = compiled(with_value(shortest(), "spec.algorithm.advantage", advantage)).orchestrator.batch.advantage
    assert (found.hook.import_path, found.hook.kwargs) == ("mine:best", {"top": 2})


def test_filters_reach_the_orchestrator():
    rules = [
        {"type": "gibberish", "enforce": False},
        {"type": "repetition", "stage": "group"},
        {"type": "custom", "import": "mine:poor", "kwargs": {"below": 2}, "scope": "all"},
    ]
    found = compiled(with_value(shortest(), "spec.algorithm.filters", rules)).orchestrator.batch.filters
    assert [(one.name, one.enforce, one.stage, one.scope) for one in found] == [
        ("gibberish", False, "batch", "rl"),
        ("repetition", True, "group", "rl"),
        ("mine:poor", True, "batch", "all"),
    ]
    assert found[2].hook.kwargs == {"below": 2}


def test_a_filter_alone_chooses_among_all_that_the_policy_did_not_write():
    configs = compiled(with_value(shortest(), f"{TRAIN}.echo", {"filter": {"import": "mine:keep"}}))
    echo = configs.orchestrator.train[0].echo
    assert [(role.alpha, role.tool_names) for role in (echo.system, echo.user, echo.tool)] == [(1.0, None)] * 3
    assert (echo.assistant, echo.warning, echo.filter.import_path) == (None, None, "mine:keep")


def test_echo_of_a_role_that_says_nothing_has_alpha_one():
    configs = compiled(with_value(shortest(), f"{TRAIN}.echo", {"tool": {}, "user": {"alpha": 0}}))
    echo = configs.orchestrator.train[0].echo
    assert (echo.tool.alpha, echo.user.alpha, echo.system) == (1.0, 0.0, None)
