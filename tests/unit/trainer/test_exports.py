"""Exports of the weights alone: what a step published, whole, bounded in number, and never the end of a run."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from transformers import AutoModelForCausalLM

from echorl_core.config import LoraConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.tiny_learner import tiny_learner, train
from echorl_trainer.copier import gathered
from echorl_trainer.exports import Exporter
from echorl_trainer.health import Health
from echorl_trainer.learner import Learner
from echorl_trainer.lora import published_parameters
from echorl_trainer.parallel import Ranks
from echorl_trainer.publish import Publisher
from echorl_trainer.step import NonFinite
from echorl_trainer.weights import MemoryStore


class Exporting:
    """A learner whose versions are published, and exported every second step."""

    def __init__(self, root: Path, model: Path, ranks: Ranks, learner: Learner) -> None:
        root.mkdir()
        self.run, self.health, self.learner = RunDirectory(root), Health(step_timeout_s=60), learner
        self.exporter = Exporter(self.run, model, every=2, keep_last=2, health=self.health, deadline_s=60)
        self.publisher = Publisher(
            learner.state.policy,
            ranks,
            RunIdentity("test", RUN_UID, 1),
            probe_token_ids=[1, 2, 3],
            store=MemoryStore(1, "http://127.0.0.1:9"),
            watch=self.health.watch,
        )

    def publish(self, version: int) -> None:
        published = self.publisher.begin(version)
        assert published is not None
        self.exporter.begin(published)

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.run.export_steps()]

    def count(self, state: str) -> float | None:
        return self.health.metrics.registry.get_sample_value("echorl_trainer_exports_total", {"state": state})


@pytest.fixture
def exporting(tmp_path: Path, model: Path, ranks: Ranks) -> Exporting:
    return Exporting(tmp_path / "run", model, ranks, tiny_learner(ranks, model))


def test_an_export_is_a_model_folder_of_its_own_step_and_the_newest_stay(exporting: Exporting) -> None:
    published = {}
    for step in range(7):
        if step > 0:
            train(exporting.learner, step, step)
        named = published_parameters(exporting.learner.state.policy)
        published[step] = {name: gathered(one, torch.float32).detach().clone() for name, one in named.items()}
        exporting.publish(step)
    exporting.exporter.wait()
    assert exporting.steps == exporting.health.progress.state()["checkpoint"]["exported"] == [4, 6]
    assert (exporting.count("written"), exporting.count("failed")) == (3, 0)
    for step in exporting.steps:
        loaded = AutoModelForCausalLM.from_pretrained(exporting.run.export(step), dtype=torch.float32)
        assert all(torch.equal(one, published[step][name]) for name, one in loaded.named_parameters())
        assert (exporting.run.export(step) / "tokenizer.json").is_file()


def test_an_attempt_that_went_back_replaces_its_steps_and_leaves_later_ones_alone(exporting: Exporting) -> None:
    for step in (2, 8):
        exporting.run.export(step).mkdir(parents=True)
        (exporting.run.export(step) / "of another attempt").touch()
    exporting.publish(2)
    exporting.exporter.wait()
    assert exporting.steps == [2, 8]
    assert not (exporting.run.export(2) / "of another attempt").exists()
    exporting.publish(4)
    exporting.publish(6)
    exporting.exporter.wait()
    assert exporting.steps == [4, 6, 8]


def test_of_an_adapter_its_two_files_are_exported(tmp_path: Path, model: Path, ranks: Ranks) -> None:
    lora = LoraConfig(rank=2, alpha=4.0, target_modules=["q_proj"])
    exporting = Exporting(tmp_path / "run", model, ranks, tiny_learner(ranks, model, steps=1, lora=lora))
    exporting.publish(2)
    exporting.exporter.wait()
    files = exporting.run.export(2)
    assert {file.name for file in files.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert any(one.any() for one in load_file(files / "adapter_model.safetensors").values())


def test_an_export_that_fails_is_told_and_the_next_one_is_made(exporting: Exporting) -> None:
    folder = exporting.run.export(2).parent
    folder.write_text("in the way")
    with capture_logs() as lines:
        exporting.publish(2)
        exporting.exporter.wait()
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert line["folder"] == str(exporting.run.export(2))
    assert (exporting.count("written"), exporting.count("failed")) == (0, 1)
    folder.unlink()
    exporting.publish(4)
    exporting.exporter.wait()
    assert exporting.steps == [4]


def test_a_run_directory_that_is_gone_does_not_come_back_in_parts(exporting: Exporting) -> None:
    shutil.rmtree(exporting.run.root)
    exporting.publish(2)
    exporting.exporter.wait()
    assert not exporting.run.root.exists()
    assert exporting.count("failed") == 1


def test_a_version_that_is_refused_is_not_exported(exporting: Exporting) -> None:
    with torch.no_grad():
        next(exporting.learner.state.policy.parameters()).view(-1)[0] = float("nan")
    exporting.publish(2)
    with pytest.raises(NonFinite, match="policy version 2"):
        exporting.exporter.wait()
    assert exporting.steps == []
