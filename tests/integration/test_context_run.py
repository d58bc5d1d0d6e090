"""A whole run whose two trainer processes share packs: real engine, orchestrator and trainer, killed on the way."""

import json
from pathlib import Path

import pytest

from echorl_testing.local.local_run import local_run, longer_run, manifest, write_model


@longer_run("shared packs")
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_ranks_that_share_packs_train_and_resume(tmp_path: Path) -> None:
    document = manifest(write_model(tmp_path / "model"), maxSteps=4)
    document["spec"]["trainer"] |= {"replicas": 2, "parallel": {"context": 2}}
    with local_run(tmp_path, document) as run:
        code = run.start({"trainer.pulled": "@4"}).ended(1000)
        assert code == 0, run.output()
    assert [prepared.resume_step for _, prepared in run.prepared()] == [0, 2]
    updates = [json.loads(line) for file in run.root.glob("records/*/updates.jsonl") for line in file.open()]
    assert {update["version"] for update in updates} >= {0, 2}
    assert all(update["max_probe_error"] < 1e-3 for update in updates)
    report = json.loads((run.root / "report.json").read_text())
    assert report["logprob_gap_tokens"] > 0
    assert report["logprob_gap_over_tolerance"] == 0
    # One batch a step for both.
    assert {file.name for file in run.root.glob("record/attempt_*/step_*/rank_*")} == {"rank_0.bin"}
