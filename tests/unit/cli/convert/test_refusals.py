"""Every refusal says which key, what was found and what is accepted."""

import pytest

from echorl_cli.convert.conversion import UNKNOWN_FORMS
from echorl_cli.convert.problem import ConversionError
from echorl_cli.convert.tree import location
from echorl_testing.manifests.prime_rl import converted_copy, smallest, with_value

NO_VERSION = "no version of prime-rl that is known here has it"
NO_ALGORITHM = "the manifest has no such algorithm"
KNOWN = "grpo, echo, max_rl, rae, opd, sft"


def refusal(values, **options):
    tree = smallest()
    for path, value in values.items():
        tree = with_value(tree, location(path), value)
    with pytest.raises(ConversionError) as caught:
        converted_copy(tree, **options)
    return str(caught.value)


ONE_VALUE = [
    (
        "orchestrator.algo.type",
        "ppo",
        f'{NO_VERSION}; found "ppo"; accepted: {KNOWN}, hierarchical_grpo, opsd, debug',
    ),
    ("orchestrator.algo.type", "opsd", f'{NO_ALGORITHM}; found "opsd"; accepted: {KNOWN}'),
    (
        "orchestrator.advantage.type",
        "gae",
        f'{NO_VERSION}; found "gae"; accepted: default, custom, ema_per_member',
    ),
    (
        "orchestrator.algo.sampling.source",
        "nobody",
        'found "nobody"; accepted: policy, or a table with name and base_url',
    ),
    (
        "orchestrator.advantage.length_penalty",
        "words",
        f'{NO_VERSION}; found "words"; accepted: tokens, turns, linear',
    ),
    ("trainer.loss.type", "grpo", f'{NO_VERSION}; found "grpo"; accepted: default, ipo, custom'),
    ("trainer.loss.adv_tau", 0, "the manifest has no loss of the penalty alone; found 0; accepted: a number above 0"),
    ("trainer.optim.type", "lion", f'{NO_VERSION}; found "lion"; accepted: adamw, sgd, muon, sign_sgd'),
    ("trainer.scheduler.type", "wsd", f'{NO_VERSION}; found "wsd"; accepted: constant, linear, cosine'),
    ("trainer.model.ac.mode", "some", f'{NO_VERSION}; found "some"; accepted: full, selective'),
    ("deployment.type", "cloud", f'{NO_VERSION}; found "cloud"; accepted: single_node, multi_node'),
    ("weight_broadcast.type", "ftp", f'{NO_VERSION}; found "ftp"; accepted: filesystem, nccl, nixl'),
    ("max_steps", "many", 'found "many"; accepted: a whole number'),
    ("max_steps", True, "found true; accepted: a whole number"),
    ("trainer.optim.lr", "big", 'found "big"; accepted: a finite number, above 0'),
    ("trainer.loss.kl_tau", "x", 'found "x"; accepted: a number'),
    ("model.name", 3, "found 3; accepted: text"),
    ("trainer.enable_token_export", "yes", 'found "yes"; accepted: true or false'),
    ("orchestrator.train.source", {"id": "x"}, "found a mapping; accepted: a list of tables"),
    ("trainer.optim", 3, "found 3; accepted: a table"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), ONE_VALUE, ids=[f"{path}={value}" for path, value, _ in ONE_VALUE]
)
def test_a_value_that_cannot_be(path, value, message):
    found = refusal({path: value})
    [told, *others] = found.splitlines()
    assert told.startswith((f"{path}: ", f"{path} ("))
    assert told.endswith(message)
    assert all(other.startswith(f"{path}.") for other in others)


def test_filters_of_another_kind():
    message = (
        f'orchestrator.filters[0].type: {NO_VERSION}; found "loud"; accepted: zero_advantage, gibberish, repetition'
    )
    assert refusal({"orchestrator.filters": [{"type": "loud"}]}) == message


def test_a_pool_of_another_kind():
    path = "orchestrator.train.source[0].pool"
    message = f'{path}.type: {NO_VERSION}; found "infinite"; accepted: static, elastic'
    assert refusal({path: {"type": "infinite"}}) == message


def test_an_environment_that_is_no_code():
    message = "orchestrator.env[0]: nothing says which code it is; found a mapping; accepted: "
    tree = {"orchestrator": {"env": [{"name": "x"}]}}
    with pytest.raises(ConversionError) as caught:
        converted_copy(tree)
    assert str(caught.value).startswith(message)


def test_no_environment_at_all():
    with pytest.raises(ConversionError) as caught:
        converted_copy({"trainer": {"optim": {"lr": 1e-6}}})
    assert "spec.environments.train: a run needs something to learn in; found an empty list" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(10**400)], ids=["nan", "inf", "large", "low"])
@pytest.mark.parametrize(
    "path",
    [
        "orchestrator.oversampling_factor",
        "orchestrator.train.source[0].env.agent.timeout.rollout",
        "trainer.loss.adv_tau",
        "trainer.optim.betas1",
    ],
)
def test_a_number_that_nothing_can_be_made_of(path, value):
    assert refusal({path: value}).endswith("; accepted: a number below 2^63")


def test_a_count_that_nothing_can_be_made_of():
    message = refusal({"orchestrator.concurrency.max_inflight": 10**400})
    assert message.startswith("orchestrator.concurrency.max_inflight: found ")
    assert message.endswith("; accepted: a whole number below 2^63")


@pytest.mark.parametrize("ratios", ["x", [], [1.0, 2.0]])
def test_ratios_that_are_not_one_for_each_environment(ratios):
    message = refusal({"orchestrator.buffer.env_ratios": ratios})
    assert message.startswith("orchestrator.buffer.env_ratios: found ")
    assert message.endswith("; accepted: a list with a number for each environment")


def test_an_unknown_key_with_what_was_meant():
    message = refusal({"trainer.optim.weight_decai": 0.1})
    assert message == (
        "trainer.optim.weight_decai: unknown key, did you mean trainer.optim.weight_decay?; found 0.1; "
        "accepted: the keys of docs/migration.md; --keep-going leaves it out"
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("batch_size", "orchestrator.batch_size"),
        ("optim.lr", "trainer.optim.lr"),
        ("server.port", "inference.server.port"),
        ("sampling.max_tokens", "orchestrator.sampling.max_tokens"),
    ],
)
def test_a_key_of_a_section_that_stands_at_the_top(key, meant):
    assert refusal({key: 64}).startswith(f"{key}: unknown key, did you mean {meant}?; ")


def test_an_unknown_key_like_no_other():
    assert refusal({"trainer.zzz": 1}).startswith("trainer.zzz: unknown key; found 1; ")


def test_all_unknown_keys_are_told_at_once_with_the_other_problems():
    lines = refusal({"trainer.zzz": 1, "yyy": {"a": 1}, "trainer.optim.type": "lion"}).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["trainer.zzz", "yyy.a", "trainer.optim.type"]


def test_keep_going_makes_lines_of_unknown_keys_and_algorithms():
    tree = with_value(smallest(), location("trainer.zzz"), 1)
    tree = with_value(tree, location("orchestrator.algo.type"), "debug")
    conversion = converted_copy(tree, keep_going=True)
    lines = [str(line) for line in conversion.lines]
    assert "trainer.zzz = 1: no counterpart: unknown key" in lines
    assert f'orchestrator.algo.type = "debug": no counterpart: {NO_ALGORITHM}; EchoRL\'s default stands' in lines
    assert conversion.document == converted_copy(smallest()).document


def test_keep_going_lets_no_unknown_version_through():
    assert NO_VERSION in refusal({"orchestrator.algo.type": "ppo"}, keep_going=True)


@pytest.mark.parametrize("form", UNKNOWN_FORMS)
@pytest.mark.parametrize("keep_going", [False, True])
def test_forms_of_configuration_that_are_unknown(form, keep_going):
    message = refusal({form: 2}, keep_going=keep_going)
    assert message == (
        f"{form}: {UNKNOWN_FORMS[form]}; found a form of configuration that is unknown here; "
        "accepted: the files of a run: trainer, orchestrator, inference and what they share"
    )


def test_roles_that_disagree():
    message = refusal({"trainer.model.name": "a/b", "inference.model.name": "a/c"})
    assert message == (
        "trainer.model.name and inference.model.name: two spellings of one key with different values; "
        'found "a/b" and "a/c"; accepted: one of the two, or equal values'
    )


def test_an_advantage_beside_an_algorithm():
    message = refusal({"orchestrator.algo.type": "max_rl", "orchestrator.advantage.type": "default"})
    assert message == (
        "orchestrator.algo.type: both say how advantages are made; "
        'found "max_rl"; accepted: no orchestrator.advantage beside it'
    )


def test_an_echo_block_beside_the_algorithm_echo():
    path = "orchestrator.train.source[0].echo"
    message = refusal({"orchestrator.algo.type": "echo", path: {"tool": {}}})
    assert message.startswith(
        f"{path}: both say which tokens are predicted; found a mapping; accepted: no block where "
    )


def test_an_environment_of_another_mode():
    path = "orchestrator.train.source[0].algo.type"
    assert refusal({path: "sft"}) == f'{path}: all environments of a run have one mode; found "sft"; accepted: rl'


def test_in_flight_that_is_not_the_factor():
    message = refusal({"orchestrator.oversampling_factor": 2.0, "orchestrator.max_inflight_rollouts": 100})
    assert message == (
        "orchestrator.max_inflight_rollouts: it is not batch_size times orchestrator.oversampling_factor; "
        "found 100; accepted: 256, or one of the two keys"
    )


def test_gpus_that_do_not_divide():
    message = refusal({"deployment.num_infer_gpus": 3, "inference.parallel.tp": 2})
    assert message == "deployment.num_infer_gpus: found 3; accepted: a multiple of inference.parallel.tp (2)"
    message = refusal({"deployment.num_infer_gpus": 8, "inference.parallel": {"tp": 2, "dp": 2}})
    assert message.startswith("deployment.num_infer_gpus: inference.parallel.dp times tensor parallel size is that; ")
    island = {"deployment": {"type": "multi_node", "num_train_nodes": 3, "nodes_per_fsdp_group": 2}}
    message = refusal(island)
    assert message == (
        "deployment.nodes_per_fsdp_group: found 2; accepted: a divisor of deployment.num_train_nodes (3)"
    )


def test_what_the_manifest_refuses_is_named_with_its_key():
    message = refusal({"orchestrator.sampling.temperature": 0})
    assert message == (
        "orchestrator.sampling.temperature (spec.environments.train[0].sampling.temperature): "
        "greedy tokens carry no usable logprob; found 0.0; accepted: a number above 0"
    )
    message = refusal({"orchestrator.batch_size": 10, "orchestrator.rollouts_per_example": 4})
    assert message.startswith("orchestrator.batch_size (spec.algorithm.batchSize): found 10; accepted: a multiple of ")


def test_a_type_for_an_environment_that_is_not_there():
    with pytest.raises(ConversionError) as caught:
        converted_copy(smallest(), types={"words": "builtin:digits", "wrods": "builtin:digits"})
    assert str(caught.value) == "--environment: found 'wrods'; accepted: the name or id of an environment in the files"


def test_an_id_that_is_none_and_a_type_that_nothing_plays():
    tree = smallest()
    tree["orchestrator"]["train"]["source"].append({"legacy": {"id": "acme sums"}})
    with pytest.raises(ConversionError) as caught:
        converted_copy(tree, types={"words": "agent:coder", "held-out": "builtin:digits"})
    told = str(caught.value)
    assert 'not supported yet: environments of agent; found "agent:coder"; accepted: builtin:<name>, verif' in told
    assert '(spec.environments.train[1].type): found "verifiers:acme sums"; accepted: builtin:<name>, verif' in told


def test_values_of_wrong_types_are_told_at_once():
    values = {"model.name": 3, "orchestrator.batch_size": "a", "trainer.optim.lr": "big", "trainer.loss.kl_tau": "x"}
    told = refusal(values).splitlines()
    assert [line.partition(":")[0].partition(" (")[0] for line in told] == [
        "model.name",
        "trainer.loss.kl_tau",
        "orchestrator.batch_size",
        "trainer.optim.lr",
    ]


@pytest.mark.parametrize(("value", "found"), [(5, "5"), ([], "an empty list")])
def test_a_value_where_an_older_key_needs_a_table_is_not_lost(value, found):
    told = refusal({"inference.gpu_memory_utilization": 0.5, "inference.model": value})
    assert f"inference.model: found {found}; accepted: a table" in told


def test_files_without_a_key():
    with pytest.raises(ConversionError, match=r"spec\.environments\.train: .*accepted: at least one environment"):
        converted_copy({})
