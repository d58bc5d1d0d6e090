"""A whole run of a mixture of experts whose trainer takes the experts of a real engine."""

import json
from pathlib import Path

import pytest

from echorl_core.arrays import unpack
from echorl_core.wire.batch import RankBatch
from echorl_testing.local.local_run import local_run, longer_run, manifest, write_model
from echorl_trainer.seeded import Family


@longer_run("replayed routers")
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe"])
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_a_trainer_takes_the_experts_that_engines_chose(tmp_path: Path, family: Family) -> None:
    document = manifest(write_model(tmp_path / "model", family=family), maxSteps=2)
    document["spec"]["trainer"] |= {"routerReplay": True}
    with local_run(tmp_path, document) as run:
        code = run.start({}).ended(1000)
        assert code == 0, run.output()
    report = json.loads((run.root / "report.json").read_text())
    assert report["logprob_gap_tokens"] > 0
    assert report["logprob_gap_over_tolerance"] == 0
    steps = [json.loads(line) for file in run.root.glob("records/*/steps.jsonl") for line in file.open()]
    # In float32, of the same version, both choose alike nearly always, if each row is that of its token and layer.
    assert steps[0]["experts/replay_differs"] < 0.01
    assert all(step["experts/replayed"] > 0.8 for step in steps)
    batches = [unpack(file.read_bytes(), RankBatch) for file in run.root.glob("record/attempt_*/step_*/rank_*")]
    told = [
        (int(length), routed)
        for batch in batches
        for micro in batch.micro_batches
        if micro.experts is not None
        for length, routed in zip(micro.lengths, micro.routed_tokens, strict=True)
    ]
    # All but the last token, which no engine has computed.
    assert told
    assert all(routed == length - 1 for length, routed in told)
