"""A short form of ``examples/lora.yaml``: real engine, orchestrator and trainer, which is killed once on the way."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from echorl_testing.local.local_run import digits, local_run, longer_run, manifest, write_model
from echorl_trainer.merge import load_adapter

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.yaml"


@longer_run("an adapter")
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_an_adapter_trains_resumes_and_ends_merged(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    document = manifest(model, maxSteps=4)
    # Played under version 4: without it the run may end before an engine holds that.
    held_out = {**digits(), "name": "held-out", "interval": 4, "numExamples": 2}
    document["spec"]["environments"]["eval"] = [held_out]
    example = yaml.safe_load(EXAMPLE.read_text())["spec"]
    document["spec"]["model"]["lora"] = example["model"]["lora"]
    document["spec"]["trainer"]["optimizer"] |= {"lr": example["trainer"]["optimizer"]["lr"]}
    with local_run(tmp_path, document) as run:
        # Killed when it has pulled batch 4: the second attempt goes on from checkpoint 2.
        code = run.start({"trainer.pulled": "@4"}).ended(1000)
        assert code == 0, run.output()
    assert [prepared.resume_step for _, prepared in run.prepared()] == [0, 2]
    updates = [json.loads(line) for file in run.root.glob("records/*/updates.jsonl") for line in file.open()]
    assert {update["version"] for update in updates} >= {0, 2, 4}
    assert all(update["max_probe_error"] < 1e-3 for update in updates)
    report = json.loads((run.root / "report.json").read_text())
    assert report["logprob_gap_tokens"] > 0
    assert report["logprob_gap_over_tolerance"] == 0
    first, last = (run.directory.checkpoint(step) for step in (2, 4))
    assert not list(first.glob("attempt_*/weights"))
    (before,), (after,) = first.glob("attempt_*/adapter"), last.glob("attempt_*/adapter")
    old, new = load_adapter(before), load_adapter(after)
    assert any(not torch.equal(old.tensors[name], new.tensors[name]) for name in new.tensors)
    (merged,) = last.glob("attempt_*/weights")
    start, final = load_file(model / "model.safetensors"), load_file(merged / "model.safetensors")
    for name, weight in start.items():
        change = new.change(name.removesuffix(".weight"))
        expected = weight if change is None else weight + change
        torch.testing.assert_close(final[name], expected, rtol=0, atol=1e-6)
