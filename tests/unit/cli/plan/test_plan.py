"""``echorl plan``: what it counts, its verdicts and exit codes, and what it says of wrong input."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_testing.manifests.documents import shortest, with_value
from echorl_testing.manifests.model_configs import QWEN3_8B, QWEN3_30B_A3B

SHAPE = [argument for key in list(QWEN3_8B)[2:9] for argument in ("--shape", f"{key}={QWEN3_8B[key]}")]


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Calls the command with a manifest of eight ranks, whose model is a folder with ``config`` alone."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))

    def call(*options, config=QWEN3_8B, name=None, **values):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        document = with_value(shortest(), "spec.model", {"name": name or str(folder)})
        document = with_value(
            document, "spec.trainer", {"replicas": 1, "gpusPerReplica": 8, **values.pop("trainer", {})}
        )
        for path, value in values.items():
            document = with_value(document, path.replace("__", "."), value)
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(document))
        arguments = ["plan", str(file), *options]
        return CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")

    return call


def row(told, name):
    (line,) = [line for line in told.stdout.splitlines() if line.strip().startswith(name)]
    return float(line.split()[-1].replace(",", ""))


def test_a_run_that_fits_says_what_each_part_takes(plan):
    told = plan("--gpu-memory", "141GiB")
    assert (told.exit_code, told.stderr) == (0, "")
    assert "8.19 B parameters, 36 layers of width 4096, vocabulary 151,936" in told.stdout
    # 4 bytes of 8,190,726,144 parameters over 8 ranks.
    assert row(told, "master weights") == row(told, "gradients") == 3.81
    assert row(told, "optimizer state") == 7.63
    assert told.stdout.count(": fits") == 2
    # In host memory 12 bytes of them over 8 ranks, as two versions in bfloat16 are: 30.51 / 8.
    assert row(told, "a checkpoint's copy") == 11.44
    assert row(told, "its files of two policy versions, about") == 3.81


def test_engines_in_fp8_hold_half_of_what_layers_weigh(plan):
    # 36 layers of 2 x 4096 x 4096 + 2 x 4096 x 1024 + 3 x 4096 x 12,288 parameters, and 49,152 outputs each.
    saved = (36 * 192_937_984 - 4 * 36 * (2 * 4096 + 2 * 1024 + 2 * 12_288 + 4096)) / 2**30
    found = [
        row(plan("--gpu-memory", "80GiB", **values), name)
        for values, name in (
            ({}, "weights"),
            ({"spec__inference": {"quantization": "fp8"}}, "weights, those of layers in"),
        )
    ]
    assert found[0] - found[1] == pytest.approx(saved, abs=0.02)


def test_a_plan_tells_whom_policies_do_not_hold(plan):
    told = plan(spec__inference={"network": {"host": True}})
    assert "inference: on the network of their nodes (network.host), so no NetworkPolicy holds" in told.stdout
    assert "NetworkPolicy" not in plan().stdout


def test_without_asynchronous_saves_a_checkpoint_takes_no_host_memory(plan):
    told = plan(spec__checkpoint={"asyncSave": False})
    assert "a checkpoint's copy" not in told.stdout


def test_what_does_not_fit_ends_with_1_and_says_what_would(plan):
    told = plan("--gpu-memory", "24GiB", trainer={"seqLen": 32_768})
    assert told.exit_code == 1
    assert "of 24.00 (--gpu-memory): does not fit" in told.stdout
    changes = [line.strip() for line in told.stdout.split("each by itself:")[1].splitlines() if line.strip()]
    assert [change.split(":")[0] for change in changes[:4]] == [
        "trainer.seqLen",
        "trainer.activationCheckpointing",
        "trainer.optimizer.cpuOffload",
        "trainer.optimizer.stateDtype",
    ]
    assert any(change.endswith("fits") for change in changes)


def test_ranks_that_share_packs_have_their_part_of_the_activations(plan):
    """The weights lie over all eight GPUs either way; heads divide by 2, 4 and 8, of which 4 is the first to fit."""
    long = {"seqLen": 32_768}
    alone, two = (plan(trainer={**long, "parallel": {"context": size}}) for size in (1, 2))
    assert row(two, "activations") == pytest.approx(row(alone, "activations") / 2, abs=0.01)
    assert row(two, "master weights") == row(alone, "master weights")
    assert "8 GPUs, the model over 8, 32,768 tokens a micro-batch of 2 GPUs" in two.stdout
    told = plan("--gpu-memory", "64GiB", trainer=long)
    (line,) = [line.split() for line in told.stdout.splitlines() if "trainer.parallel.context" in line]
    assert (line[1], line[-1]) == ("4", "fits")
    fits = [plan("--gpu-memory", "64GiB", trainer={**long, "parallel": {"context": size}}) for size in (2, 4)]
    assert [": fits" in one.stdout.partition("engines")[0] for one in fits] == [False, True]


def test_an_elastic_gang_must_fit_with_its_fewest_pods(plan):
    """The manifest's eight GPUs as two pods of four: with one of them each holds twice the weights."""
    trainer = {"replicas": 2, "gpusPerReplica": 4}
    layouts = (trainer, {**trainer, "replicas": 1}, {**trainer, "elastic": {"minReplicas": 1}})
    most, more, _ = (row(plan(trainer=layout), "together") for layout in layouts)
    between = f"{(most + more) / 2:.2f}GiB"
    whole, fewest, told = (plan("--gpu-memory", between, trainer=layout) for layout in layouts)
    assert (row(told, "together"), row(told, "with the 4 GPUs of elastic.minReplicas")) == (most, more)
    fits = [": fits" in one.stdout.partition("engines")[0] for one in (whole, fewest, told)]
    assert fits == [True, False, False]


def test_ranks_that_split_experts_gather_their_part_of_them(plan):
    """Of 48 layers two are gathered: 2 x 2 x 603,979,776 bytes of experts, of which an eighth is a rank's own."""
    trainer = {"gradientAccumulation": "sharded"}
    alone, split = (plan(config=QWEN3_30B_A3B, trainer={**trainer, "parallel": {"expert": size}}) for size in (1, 8))
    saved = 2 * 2 * 603_979_776 * 7 / 8 / 2**30
    assert row(split, "gathered weights") == pytest.approx(row(alone, "gathered weights") - saved, abs=0.01)
    assert "tokens a micro-batch, experts split over 8" in split.stdout
    held = row(alone, "together")
    told = plan("--gpu-memory", f"{int(held * 1024) - 2048}MiB", config=QWEN3_30B_A3B, trainer=trainer)
    assert any("trainer.parallel.expert: 2" in line and line.endswith("fits") for line in told.stdout.splitlines())


@pytest.mark.parametrize(
    ("config", "size", "accepted"),
    [(QWEN3_30B_A3B, 3, "a divisor of the model's 128 experts"), (QWEN3_8B, 2, "1: the model has no experts")],
)
def test_a_number_of_ranks_that_does_not_divide_the_experts_is_refused(plan, config, size, accepted):
    told = plan(config=config, trainer={"gpusPerReplica": 6, "parallel": {"expert": size}})
    assert told.exit_code == 2
    assert f"spec.trainer.parallel.expert: found {size}; accepted: {accepted}" in told.stderr


def test_a_number_of_ranks_that_does_not_divide_the_heads_is_refused(plan):
    told = plan(trainer={"gpusPerReplica": 6, "parallel": {"context": 3}})
    assert told.exit_code == 2
    assert (
        "spec.trainer.parallel.context: found 3; accepted: a divisor of the model's 32 attention heads" in told.stderr
    )


def test_the_number_of_gpus_that_it_proposes_is_enough_and_fewer_are_not(plan):
    told = plan("--gpu-memory", "48GiB", trainer={"seqLen": 8192})
    assert told.exit_code == 1
    (line,) = [line.split() for line in told.stdout.splitlines() if " GPUs " in line and line.endswith(" fits")]
    assert line[:2] == ["16", "GPUs"]
    assert plan("--gpu-memory", "48GiB", trainer={"seqLen": 8192, "gpusPerReplica": 16}).exit_code == 0


def test_the_memory_of_a_gpu_is_read_from_what_the_pods_ask_for(plan):
    selector = {"spec": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}
    told = plan(trainer={"template": selector}, spec__inference__template=selector)
    assert told.exit_code == 0
    assert told.stdout.count("of 80.00 (nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3)") == 2
    exact = {"spec": {"nodeSelector": {"nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.product": "x"}}}
    assert "of 140.40 (nvidia.com/gpu.memory: 143771)" in plan(trainer={"template": exact}).stdout


@pytest.mark.parametrize("label", ["nvidia.com/gpu.memory", "nvidia.com/gpu.product"])
@pytest.mark.parametrize("value", ["²", "0", "9" * 5000, "9" * 5000 + "GB", "0GB"])
def test_labels_that_say_no_amount_are_as_if_they_were_not_there(plan, label, value):
    told = plan(trainer={"template": {"spec": {"nodeSelector": {label: value}}}})
    assert told.exit_code == 0, told.output
    assert "fits" not in told.stdout


def test_without_a_gpus_memory_there_is_no_verdict(plan):
    told = plan()
    assert told.exit_code == 0
    assert "say --gpu-memory" in told.stdout
    assert "fits" not in told.stdout


def test_roles_on_the_cpu_need_no_gpu(plan):
    told = plan("--gpu-memory", "1GiB", trainer={"gpusPerReplica": 0}, spec__inference__gpusPerReplica=0)
    assert told.exit_code == 0
    assert "trainer: on the CPU" in told.stdout
    assert "engines: none on GPUs" in told.stdout


def test_an_engines_share_of_the_gpu_is_read_from_its_arguments(plan):
    whole = plan("--gpu-memory", "80GiB")
    for arguments in (["--gpu-memory-utilization=0.3"], ["--gpu-memory-utilization", "0.3"]):
        less = plan("--gpu-memory", "80GiB", spec__inference__extraArgs=arguments)
        assert row_of_tokens(less) < row_of_tokens(whole) / 4
    assert plan("--gpu-memory", "80GiB", spec__inference__extraArgs=["--gpu-memory-utilization=0.2"]).exit_code == 1


@pytest.mark.parametrize("share", ["nan", "inf", "-1", "0", "much"])
def test_a_share_that_is_none_is_left_to_the_engine_to_refuse(plan, share):
    told = plan("--gpu-memory", "80GiB", spec__inference__extraArgs=[f"--gpu-memory-utilization={share}"])
    assert row_of_tokens(told) == row_of_tokens(plan("--gpu-memory", "80GiB"))


def row_of_tokens(told):
    (line,) = [line for line in told.stdout.splitlines() if "room for" in line]
    return int(line.split("room for ")[1].split()[0].replace(",", ""))


def test_numbers_stand_in_for_a_model_on_a_hub(plan):
    told = plan("--gpu-memory", "141GiB", *SHAPE, name="qwen/qwen3-8b")
    assert told.exit_code == 0, told.stderr
    assert "qwen/qwen3-8b: 8.19 B parameters" in told.stdout
    tied = plan("--gpu-memory", "141GiB", *SHAPE, "--shape", "tie_word_embeddings=true", name="qwen/qwen3-8b")
    assert "7.57 B parameters" in tied.stdout


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (["--gpu-memory", "plenty"], {}, "--gpu-memory: found 'plenty', accepted is an amount such as 141GiB"),
        (["--gpu-memory", "80"], {}, "--gpu-memory: found '80'"),
        (["--shape", "width=3"], {}, "--shape: found 'width=3', accepted are KEY=NUMBER of vocab_size, hidden_size"),
        (["--shape", "hidden_size=wide"], {}, "--shape hidden_size: found 'wide', accepted is a whole number"),
        (["--shape", "hidden_size=0"], {}, "hidden_size: found 0, accepted is a whole number from 1"),
        ([], {"name": "a/b"}, "spec.model.name: found a/b: no such folder, and not in the hub's cache"),
        (["--shape", "hidden_size=64"], {"name": "a/b"}, "vocab_size: found nothing, accepted is a whole number"),
        ([], {"config": "no JSON"}, "without a readable config.json"),
        ([], {"config": "[]"}, "a config.json that is no mapping"),
        ([], {"config": {**QWEN3_8B, "hidden_size": "4096"}}, "hidden_size: found '4096', accepted is a whole number"),
        ([], {"config": {**QWEN3_8B, "num_experts": 8}}, "not supported yet: mixture of experts"),
        ([], {"trainer": {"gpusPerReplica": -1}}, "spec.trainer.gpusPerReplica"),
    ],
)
def test_wrong_input_is_named_and_ends_with_2(plan, options, values, message):
    told = plan(*options, **values)
    assert told.exit_code == 2
    assert message in " ".join(told.stderr.replace("│", " ").split()), told.stderr
    assert "Traceback" not in told.output
