"""What single keys mean."""

import pytest

from echorl_cli.convert.draft import Kind
from echorl_cli.convert.tree import MISSING, at, location
from echorl_testing.manifests.prime_rl import converted_copy, smallest, with_value


def field(path, value, to, **options):
    """What the manifest has at ``to`` when the key ``path`` is set to ``value``."""
    tree = smallest()
    for one, item in {path: value}.items() if isinstance(path, str) else zip(path, value, strict=True):
        tree = with_value(tree, location(one), item)
    found = at(converted_copy(tree, **options).document, location(to))
    return None if found is MISSING else found


def test_defaults_of_prime_rl_that_are_none_here_are_written_out():
    document = converted_copy(smallest()).document
    spec = document["spec"]
    assert spec["model"] == {"name": "Qwen/Qwen3-0.6B", "maxModelLen": 2048}
    assert spec["algorithm"] == {"groupSize": 1, "batchSize": 128, "maxStaleness": 8}
    assert spec["trainer"]["optimizer"] == {"betas": [0.9, 0.999]}
    assert spec["environments"]["train"][0]["sampling"] == {"maxCompletionTokens": 2048}
    assert spec["environments"]["eval"][0]["interval"] == 100


def test_a_task_set_of_verifiers_keeps_its_id_its_configuration_and_its_harness():
    taskset, harness = {"id": "acme/maths", "split": "train"}, {"id": "null", "tool_timeout": 5.0}
    tree = smallest()
    tree["orchestrator"]["train"]["source"] = [
        {"env": {"taskset": taskset}},
        {"name": "other", "env": {"taskset": taskset, "agent": {"harness": harness}}},
    ]
    conversion = converted_copy(tree, types={"held-out": "builtin:digits"})
    bare, chosen = conversion.document["spec"]["environments"]["train"]
    assert (bare["name"], bare["type"], bare["args"]) == (
        "maths",
        "verifiers:acme/maths",
        {"taskset": {"split": "train"}},
    )
    assert chosen["args"] == {"taskset": {"split": "train"}, "harness": harness}
    told = {line.subject: line.kind for line in conversion.lines}
    assert told["spec.environments.train[0].args.harness"] is Kind.DEFAULT
    assert "spec.environments.train[1].args.harness" not in told
    assert told["spec.orchestrator.image"] is Kind.TO_FILL_IN


def test_the_loss_stays_the_same_function():
    # adv_tau * (-A r) + kl_tau * KL = rlWeight * (-A r + klTau * KL)
    paths, values = ("trainer.loss.adv_tau", "trainer.loss.kl_tau"), (0.5, 0.002)
    assert field(paths, values, "spec.algorithm.rlWeight") == 0.5
    assert field(paths, values, "spec.algorithm.loss.klTau") == pytest.approx(0.004)
    # prime-rl's kl_tau is 0.001 when it is not set.
    assert field("trainer.loss.adv_tau", 2.0, "spec.algorithm.loss.klTau") == pytest.approx(0.0005)


OPD = {"type": "opd", "teacher": {"name": "big", "base_url": ["http://t/v1"]}}


@pytest.mark.parametrize(
    ("path", "value", "to", "expected"),
    [
        ("trainer.loss.type", "default", "spec.algorithm.loss", None),
        ("orchestrator.advantage", None, "spec.algorithm.advantage.type", "none"),
        ("orchestrator.algo", OPD, "spec.algorithm.mode", "opd"),
        ("orchestrator.algo", OPD, "spec.algorithm.teacher", {"model": "big", "url": "http://t/v1"}),
        ("orchestrator.algo", {**OPD, "type": "sft"}, "spec.algorithm.mode", "sft"),
        ("orchestrator.teacher.model.name", "big", "spec.algorithm.teacher", None),
        ("trainer.optim.type", "sign_sgd", "spec.trainer.optimizer.type", "signSgd"),
        ("trainer.model.ac", {}, "spec.trainer.activationCheckpointing", "full"),
        ("weight_broadcast.type", "filesystem", "spec.weightTransfer.mode", "disk"),
        ("weight_broadcast.type", "nccl", "spec.weightTransfer.mode", "nccl"),
        ("ckpt.resume_step", -1, "spec.resume", None),
        ("ckpt.resume_step", 40, "spec.resume", {"policy": "FromStep", "step": 40}),
        ("resume", {"step": 40}, "spec.resume", {"policy": "FromStep", "step": 40}),
        ("orchestrator.renderer", None, "spec.model.renderer", "engine"),
        ("orchestrator.renderer.name", "default", "spec.model.renderer", "engine"),
        ("monitors.wandb", {}, "spec.monitors.wandb", {"project": "prime-rl"}),
        ("wandb", {"entity": "team"}, "spec.monitors.wandb", {"project": "prime-rl", "entity": "team"}),
        ("monitors.wandb", None, "spec.monitors", None),
        ("orchestrator.train.source[0].env.timeout.episode", 90, "spec.environments.train[0].episodeTimeout", "90s"),
        ("orchestrator.train.source[0].env.agent.retries.max_retries", 7, "spec.environments.train[0].maxRetries", 7),
        ("orchestrator.train.source[0].env.retries.max_retries", 7, "spec.environments.train[0].maxRetries", 7),
        ("orchestrator.eval.source[0].select.limit", 5, "spec.environments.eval[0].numExamples", 5),
        ("orchestrator.train.source[0].state_columns", ["a"], "spec.environments.train[0].stateColumns", ["a"]),
        ("trainer.model.lora", {}, "spec.model.lora.targetModules[6]", "down_proj"),
        ("deployment", {"type": "multi_node", "num_train_nodes": 2}, "spec.inference.replicas", 8),
        (
            "deployment",
            {"type": "multi_node", "num_train_nodes": 2, "num_infer_replicas": 3},
            "spec.inference.replicas",
            24,
        ),
        ("orchestrator.max_inflight_rollouts", 192, "spec.environments.train[0].maxConcurrent", 192),
        ("orchestrator.max_inflight_rollouts", 4096, "spec.environments.eval[0].maxConcurrent", 4096),
        ("orchestrator.max_inflight_rollouts", 192, "spec.algorithm.oversampling", None),
        # 128 episodes a batch, 8 updates behind at the most: 9 batches are ready or under way without oversampling.
        ("orchestrator.max_inflight_rollouts", 4608, "spec.algorithm.oversampling", 4.0),
        ("orchestrator.oversampling_factor", 2.0, "spec.environments.train[0].maxConcurrent", 256),
        ("orchestrator.oversampling_factor", 2.0, "spec.algorithm.oversampling", 2.0),
        ("orchestrator.oversampling_factor", 0.5, "spec.algorithm.oversampling", 1.0),
        ("orchestrator.pre_batch_filters", [{"type": "gibberish"}], "spec.algorithm.filters[0].enforce", False),
        ("orchestrator.pre_batch_filters", [{"type": "gibberish"}], "spec.algorithm.filters[1].type", "zeroAdvantage"),
        ("orchestrator.multi_agent.drop_judge", True, "spec.environments.train[0].dropMembers", ["judge"]),
        ("orchestrator.max_concurrent", 9, "spec.environments.train[0].maxConcurrent", 9),
        ("orchestrator.train.source[0].timeout", 90, "spec.environments.train[0].episodeTimeout", "90s"),
        ("orchestrator.train.source[0].num_workers", "auto", "spec.environments.train[0].workers", None),
        ("orchestrator.train.source[0].num_workers", 6, "spec.environments.train[0].workers", 6),
        ("orchestrator.train.source[0].group_size", 4, "spec.algorithm.groupSize", 4),
        ("orchestrator.train.source[0].group_size", 4, "spec.environments.train[0].algorithm", None),
        ("orchestrator.train.filter_zero_advantages", False, "spec.algorithm.filters", []),
        ("orchestrator.train.source[0].echo", {"tool": {}}, "spec.environments.train[0].echo.tool.alpha", 1.0),
        ("orchestrator.algo.type", "echo", "spec.environments.train[0].echo", {"tool": {"alpha": 0.1}}),
        (
            "orchestrator.train.source[0].sft",
            {"on_tool_outputs": True, "alpha": 0.5, "tool_names": ["bash"]},
            "spec.environments.train[0].echo",
            {"tool": {"alpha": 0.5, "toolNames": ["bash"]}},
        ),
        ("orchestrator.train.source[0].sft", {"on_tool_outputs": False}, "spec.environments.train[0].echo", None),
        ("orchestrator.train.source[0].algo.type", "echo", "spec.environments.train[0].algorithm", None),
        ("orchestrator.eval.num_examples", -1, "spec.environments.eval[0].numExamples", None),
        ("orchestrator.eval.sampling.top_k", -1, "spec.environments.eval[0].sampling.topK", None),
        ("orchestrator.eval.sampling.extra_body", {"top_k": 5}, "spec.environments.eval[0].sampling.topK", 5),
        ("inference.vllm.dtype", "auto", "spec.model.dtype", None),
        ("inference.vllm.max_model_len", 1024, "spec.model.maxModelLen", 1024),
        ("inference.vllm.max_model_len", 9999, "spec.model.maxModelLen", 2048),
        ("inference.vllm.enforce_eager", False, "spec.inference.extraArgs", ["--no-enforce-eager"]),
        ("inference.vllm.rope_scaling", {"f": 2}, "spec.inference.extraArgs", ['--rope-scaling={"f": 2}']),
        # Also cut short, negated, or a key of it alone, as vLLM reads it.
        ("inference.vllm.served_model_name", "x", "spec.inference", None),
        ("inference.vllm.max_log", 5, "spec.inference", None),
        ("inference.vllm.enable_lor", False, "spec.inference", None),
        ("inference.vllm_extra", {"generation-config.x": "y"}, "spec.inference", None),
        ("inference.parallel.tp", 4, "spec.inference.gpusPerReplica", 4),
    ],
)
def test_what_a_key_means(path, value, to, expected):
    assert field(path, value, to) == expected


@pytest.mark.parametrize(
    ("path", "value", "to"),
    [
        ("max_steps", 7, "spec.maxSteps"),
        ("orchestrator.seed", 7, "spec.seed"),
        ("model.name", "a/b", "spec.model.name"),
        ("orchestrator.seq_len", 1024, "spec.model.maxModelLen"),
        ("trainer.model.seq_len", 9000, "spec.trainer.seqLen"),
        ("trainer.model.dp_replicate", 1, "spec.trainer.parallel.replicate"),
        ("trainer.model.cp", 1, "spec.trainer.parallel.context"),
        ("trainer.model.ep", 1, "spec.trainer.parallel.expert"),
        ("trainer.model.lora.rank", 4, "spec.model.lora.rank"),
        ("trainer.model.lora.alpha", 8.0, "spec.model.lora.alpha"),
        ("trainer.loss.dppo_mask_low", 0.11, "spec.algorithm.loss.maskLow"),
        ("trainer.loss.dppo_mask_high", 0.12, "spec.algorithm.loss.maskHigh"),
        ("trainer.loss.kl_tau", 0.13, "spec.algorithm.loss.klTau"),
        ("trainer.optim.lr", 0.14, "spec.trainer.optimizer.lr"),
        ("trainer.optim.weight_decay", 0.15, "spec.trainer.optimizer.weightDecay"),
        ("trainer.optim.max_norm", 0.16, "spec.trainer.optimizer.maxGradNorm"),
        ("trainer.optim.betas1", 0.17, "spec.trainer.optimizer.betas[0]"),
        ("trainer.optim.betas2", 0.18, "spec.trainer.optimizer.betas[1]"),
        ("ckpt.interval", 7, "spec.checkpoint.interval"),
        ("trainer.ckpt.keep_last", 7, "spec.checkpoint.keepLast"),
        ("orchestrator.ckpt.keep_interval", 50, "spec.checkpoint.keepEvery"),
        ("orchestrator.max_off_policy_steps", 3, "spec.algorithm.maxStaleness"),
        ("orchestrator.batch_size", 7, "spec.algorithm.batchSize"),
        ("orchestrator.token_batch_size", 700, "spec.algorithm.tokenBatchSize"),
        ("orchestrator.max_concurrent", 9, "spec.environments.eval[0].maxConcurrent"),
        ("orchestrator.train.max_retries", 9, "spec.environments.train[0].maxRetries"),
        ("orchestrator.train.source[0].ratio", 2.5, "spec.environments.train[0].weight"),
        ("orchestrator.train.source[0].max_turns", 9, "spec.environments.train[0].maxTurns"),
        ("orchestrator.eval.source[0].max_turns", 9, "spec.environments.eval[0].maxTurns"),
        ("orchestrator.eval.source[0].interval", 9, "spec.environments.eval[0].interval"),
        ("orchestrator.eval.group_size", 9, "spec.environments.eval[0].groupSize"),
        ("orchestrator.eval.num_examples", 9, "spec.environments.eval[0].numExamples"),
        ("orchestrator.eval.sampling.top_p", 0.5, "spec.environments.eval[0].sampling.topP"),
        ("deployment.num_train_gpus", 4, "spec.trainer.gpusPerReplica"),
        ("deployment.num_infer_gpus", 4, "spec.inference.replicas"),
        ("inference.parallel.dp", 3, "spec.inference.replicas"),
        ("inference.vllm.tensor_parallel_size", 2, "spec.inference.tensorParallel"),
        ("run.name", "mine", "metadata.name"),
        ("trainer.wandb.project", "ours", "spec.monitors.wandb.project"),
        ("trainer.enable_token_export", True, "spec.tokenExport.enabled"),
    ],
)
def test_where_a_value_goes(path, value, to):
    assert field(path, value, to) == value


def test_pools_by_difficulty_become_a_curriculum():
    paths = ("orchestrator.buffer.easy_threshold", "orchestrator.buffer.hard_threshold")
    expected = {"easyFrom": 0.9, "keepEasy": 0.0, "hardTo": 0.1, "keepHard": 0.0}
    assert field(paths, (0.9, 0.1), "spec.environments.train[0].curriculum") == expected
    assert field(paths[0], 0.9, "spec.environments.train[0].curriculum") == {"easyFrom": 0.9, "keepEasy": 0.0}


def test_online_difficulty_filtering_is_a_filter_of_groups():
    difficulty = {"type": "difficulty", "stage": "group"}
    online = "orchestrator.buffer.online_difficulty_filtering"
    assert field(online, True, "spec.algorithm.filters") == [difficulty, {"type": "zeroAdvantage"}]
    both = (online, "orchestrator.train.filter_zero_advantages")
    assert field(both, (True, False), "spec.algorithm.filters") == [difficulty]
    assert field(online, False, "spec.algorithm.filters") is None


def test_an_environment_goes_before_what_environments_share():
    paths = ("orchestrator.sampling.temperature", "orchestrator.train.source[0].sampling.temperature")
    assert field(paths, (0.5, 0.9), "spec.environments.train[0].sampling.temperature") == 0.9


def test_the_size_of_groups_is_the_run_s_unless_an_environment_has_another():
    paths = ("orchestrator.group_size", "orchestrator.train.source[0].group_size")
    assert field(paths, (8, 4), "spec.algorithm.groupSize") == 8
    assert field(paths, (8, 4), "spec.environments.train[0].algorithm.groupSize") == 4
    assert field(paths, (8, 8), "spec.environments.train[0].algorithm") is None


def test_a_role_s_own_length_goes_before_the_shared_one():
    paths = ("seq_len", "orchestrator.seq_len")
    assert field(paths, (4096, 1024), "spec.model.maxModelLen") == 1024
    assert field(paths, (4096, 1024), "spec.trainer.seqLen") == 4096


def test_ipo_has_one_bound_for_both_sides():
    assert field("trainer.loss.type", "ipo", "spec.algorithm.loss") == {"type": "ipo", "maskLow": 0.1, "maskHigh": 0.1}
    paths, values = ("trainer.loss.type", "trainer.loss.ipo_threshold"), ("ipo", 0.25)
    assert field(paths, values, "spec.algorithm.loss.maskLow") == 0.25


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (
            {"type": "ema_per_member"},
            {"type": "rae", "order": "updateThenSubtract", "baselinePer": "task"},
        ),
        ({"type": "custom", "import_path": "ours.adv"}, {"type": "custom", "import": "ours:adv"}),
    ],
)
def test_older_advantages(advantage, expected):
    assert field("orchestrator.advantage", advantage, "spec.algorithm.advantage") == expected


@pytest.mark.parametrize("base", ["orchestrator.advantage", "orchestrator.algo"])
@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ({"type": "turns"}, {"by": "turns"}),
        ("tokens", {"by": "tokens"}),
        (
            {"type": "tokens", "completion_weight": 0.5, "tool_response_weight": 0},
            {"by": "tokens", "completionWeight": 0.5, "environmentWeight": 0.0},
        ),
        ({"type": "linear", "num_turns_weight": 0.2}, None),
    ],
)
def test_a_bonus_for_short_episodes(base, penalty, expected):
    kind = "default" if base.endswith("advantage") else "grpo"
    paths, values = (f"{base}.type", f"{base}.length_penalty"), (kind, penalty)
    assert field(paths, values, "spec.algorithm.advantage.lengthShaping") == expected


def test_a_linear_penalty_has_no_counterpart():
    tree = with_value(smallest(), location("orchestrator.algo"), {"type": "grpo", "length_penalty": {"type": "linear"}})
    [line] = [str(line) for line in converted_copy(tree).lines if line.kind is Kind.NO_COUNTERPART]
    expected = "orchestrator.algo.length_penalty = a mapping: no counterpart: the manifest has no linear penalty; "
    assert line.startswith(expected)


OWN = {"type": "custom", "import_path": "ours.fn", "kwargs": {"a": 1}}
KEEP = {"import_path": "ours.fn", "kwargs": {"a": 1}}


@pytest.mark.parametrize(
    ("path", "value", "to", "contract"),
    [
        ("trainer.loss", OWN, "loss", "LossInputs of one sequence and the kwargs, and wants a loss for each token"),
        (
            "orchestrator.advantage",
            OWN,
            "advantage",
            "AdvantageInputs of one group and the kwargs, and wants a list of",
        ),
        (
            "orchestrator.algo",
            {"type": "echo", "filter": KEEP},
            "",
            "the episode as a dict and the kwargs, and wants a",
        ),
        ("orchestrator.train.source[0].echo", {"tool": {}, "filter": KEEP}, "", "the episode as a dict and the kwargs"),
    ],
)
def test_a_function_of_the_user_s_own_is_carried_over_and_its_signature_told_once(path, value, to, contract):
    where = f"spec.algorithm.{to}" if to else "spec.environments.train[0].echo.filter"
    carried = field(path, value, where)
    assert (carried["import"], carried["kwargs"]) == ("ours:fn", {"a": 1})
    tree = with_value(smallest(), location(path), value)
    tree["orchestrator"]["train"]["source"].append({"name": "more", "legacy": {"id": "words"}})
    told = [str(line) for line in converted_copy(tree).lines if "has to be adapted" in line.text]
    assert len(told) == 1
    assert '.import_path = "ours.fn": changed: the function has to be adapted: EchoRL calls it with ' in told[0]
    assert contract in told[0]
    assert told[0].endswith("; see docs/environments.md" if "filter" in value else "; see docs/algorithms.md")


def test_rae_of_the_newest_generation_subtracts_first():
    expected = {"type": "rae", "momentum": 0.95, "order": "subtractThenUpdate", "baselinePer": "member"}
    assert field("orchestrator.algo.type", "rae", "spec.algorithm.advantage") == expected


def test_gpus_of_several_nodes():
    nodes = {"type": "multi_node", "num_train_nodes": 4, "num_infer_nodes": 2, "num_infer_replicas": 3}
    paths, values = ("deployment", "inference.parallel.tp"), ({**nodes, "nodes_per_fsdp_group": 2}, 4)
    assert field(paths, values, "spec.trainer.replicas") == 4
    assert field(paths, values, "spec.trainer.gpusPerReplica") == 8
    assert field(paths, values, "spec.trainer.parallel.replicate") == 2
    assert field(paths, values, "spec.inference.replicas") == 12  # 2 * 3 nodes of 8 GPUs, 4 each


def test_an_eval_environment_named_like_a_train_environment_gets_a_name_of_its_own():
    tree = with_value(smallest(), location("orchestrator.eval.source[0].name"), "words")
    conversion = converted_copy(tree)
    assert conversion.document["spec"]["environments"]["eval"][0]["name"] == "words-eval"
    assert [line.subject for line in conversion.lines if line.kind is Kind.CHANGED] == [
        'orchestrator.eval.source[0].name = "words"'
    ]


def test_what_another_key_goes_before_gets_a_line():
    tree = with_value(smallest(), location("orchestrator.seed"), 1)
    tree = with_value(tree, location("orchestrator.buffer.seed"), 2)
    tree = with_value(tree, location("orchestrator.train.source[0].taskset"), {"id": "sums"})
    tree = with_value(tree, location("run.name"), "mine")
    tree = with_value(tree, location("trainer.wandb.name"), "mine-trainer")
    said = [str(line) for line in converted_copy(tree).lines if line.kind in {Kind.CHANGED, Kind.NO_COUNTERPART}]
    assert sorted(said) == [
        "orchestrator.buffer.seed = 2: no counterpart: orchestrator.seed goes before it",
        'orchestrator.train.source[0].legacy.id = "words": no counterpart: '
        "orchestrator.train.source[0].env.taskset.id goes before it",
        'trainer.wandb.name = "mine-trainer": changed: the run is called mine',
    ]


def test_wandb_takes_over_who_owns_the_project_and_whether_it_is_offline():
    tree = with_value(smallest(), location("wandb"), {"project": "ours", "entity": "team", "offline": True})
    made = converted_copy(tree).document["spec"]["monitors"]["wandb"]
    assert made == {"project": "ours", "entity": "team", "mode": "offline"}


def test_lines_have_the_keys_as_the_file_has_them_and_comments_the_one_spelling():
    tree = {"orchestrator": {"env": [{"id": "words", "address": "tcp://host:1"}]}}
    conversion = converted_copy(tree)
    [line] = [line for line in conversion.lines if "address" in line.subject]
    assert str(line).startswith('orchestrator.env[0].address = "tcp://host:1": no counterpart: ')
    assert line.comment.startswith('orchestrator.train.source[0].serve.address = "tcp://host:1": no counterpart: ')


@pytest.mark.parametrize(("called", "name"), [("7B GRPO", "run-7b-grpo"), ("My_Run.2", "my-run-2"), ("Ä", "converted")])
def test_a_name_becomes_one_that_a_run_may_have(called, name):
    assert field("run.name", called, "metadata.name") == name


def lines_with(values, kind):
    tree = smallest()
    for path, value in values.items():
        tree = with_value(tree, location(path), value)
    return [str(line) for line in converted_copy(tree).lines if line.kind is kind]


@pytest.mark.parametrize(
    "values",
    [{"orchestrator.algo.type": "echo"}, {"orchestrator.train.source[0].echo": {"tool": {}}}],
    ids=["algorithm", "block"],
)
def test_where_tokens_need_a_writer_the_default_renderer_is_to_be_filled_in(values):
    values = {**values, "orchestrator.renderer.name": "default"}
    assert field(list(values), list(values.values()), "spec.model.renderer") is None
    [line] = [line for line in lines_with(values, Kind.TO_FILL_IN) if line.startswith("spec.model.renderer: ")]
    assert "tells whose a token is" in line


GATE = "orchestrator.train.source[0].curriculum.gates"


def test_a_gate_at_advantage_0_is_a_filter_of_groups():
    rule = {"type": "zeroAdvantage", "enforce": True, "stage": "group"}
    to = "spec.environments.train[0].algorithm.filters"
    gate = {"any": {"type": "advantage_range", "reject_min": 0.0}}
    assert field(GATE, gate, to) == [rule, {"type": "zeroAdvantage"}]
    run = {"orchestrator.pre_batch_filters": [{"type": "zero_advantage"}], GATE: gate}
    assert field(list(run), list(run.values()), to) is None


def test_a_gate_of_other_bounds_has_no_counterpart():
    gate = {"any": {"type": "advantage_range", "reject_max": 0.1}}
    assert field(GATE, gate, "spec.environments.train[0].algorithm") is None
    lines = lines_with({GATE: gate}, Kind.NO_COUNTERPART)
    assert [line.partition(" = ")[0] for line in lines] == [f"{GATE}.any.type", f"{GATE}.any.reject_max"]


def test_arguments_of_a_chat_template_are_told_as_what_they_are():
    base = "orchestrator.train.sampling.extra_body"
    lines = lines_with(
        {f"{base}.chat_template_kwargs": {"enable_thinking": False}, f"{base}.n": 2}, Kind.NO_COUNTERPART
    )
    assert lines[0].startswith(f"{base}.chat_template_kwargs.enable_thinking = false: no counterpart: prompts are ")
    assert lines[1].startswith(f"{base}.n = 2: no counterpart: the manifest has no such sampling parameter")


def test_files_of_earlier_versions_are_told_that_the_loss_is_another():
    tree = smallest()
    tree["orchestrator"]["sampling"] = {"temperature": 0.7}
    assert "trainer.loss" in [line.subject for line in converted_copy(tree).lines]
    assert "trainer.loss" not in [line.subject for line in converted_copy(smallest()).lines]
    tree["trainer"] = {"loss": {"kl_tau": 0.0}}
    assert "trainer.loss" not in [line.subject for line in converted_copy(tree).lines]
