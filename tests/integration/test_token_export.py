"""A trainer process exports the tokens of the steps that its config asks for, and the command line reads them."""

from pathlib import Path

from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_core.identity import RunIdentity
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.tokens import read_trained
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.fake_orchestrator import FakeOrchestrator
from echorl_testing.trainer.tiny_learner import tiny_model
from echorl_testing.trainer.trainer_processes import Gang, trainer_config


async def test_due_steps_are_exported_and_can_be_read(tmp_path: Path) -> None:
    run, model = RunDirectory(tmp_path / "run"), tiny_model(tmp_path / "tiny")
    identity = RunIdentity("test", RUN_UID, 1)
    prepare(run, identity)
    async with FakeOrchestrator(run, identity, steps=3, num_ranks=1, interval=9) as orchestrator:
        settings = trainer_config(run, model, orchestrator.url, token_export_every=2)
        gang = Gang(tmp_path / "attempt_1", settings, identity, 1)
        try:
            gang.start("echorl_trainer")
            assert await gang.ended() == [0], gang.log()
        finally:
            await gang.stop()
    files = sorted((run.root / "tokens" / "attempt_1").iterdir())
    assert [file.name for file in files] == ["step_000002.rank_0.jsonl", "step_000003.rank_0.jsonl"]
    sequences = list(read_trained(files[0]))
    trained = sum(
        (weight != 0) | (echo != 0)
        for one in sequences
        for weight, echo in zip(one.rl_weight, one.ce_weight, strict=True)
    )
    assert trained == orchestrator.reports[1].trained_tokens > 0
    assert {(one.run_uid, one.step) for one in sequences} == {(RUN_UID, 2)}
    shown = CliRunner().invoke(app_for(["tokens"]), ["tokens", str(files[0])])
    assert shown.exit_code == 0
    assert sequences[0].sample_id in shown.output
