"""Checkpoints restore every bit, isolate the save from the next step, and never end a run by failing."""

import asyncio
import random
import resource
import sys
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from echorl_core.checkpoints import NO_HISTORY, CheckpointManifest, committed, verify, write_manifest
from echorl_core.config import LoraConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.fake_orchestrator import TOKEN, FakeOrchestrator
from echorl_testing.trainer.tiny_learner import tiny_learner, tiny_model, train
from echorl_trainer.checkpoint import Saver, SaveTarget
from echorl_trainer.health import Health
from echorl_trainer.learner import Learner
from echorl_trainer.link import Fenced, Link
from echorl_trainer.parallel import Ranks
from echorl_trainer.publish import Publisher
from echorl_trainer.rank import exit_code, request_headers
from echorl_trainer.shards import local
from echorl_trainer.staging import HostCopies
from echorl_trainer.state import OtherRun, TrainState, Unreadable, reason, save_state, state_digest, trainer_folder
from echorl_trainer.step import NonFinite
from echorl_trainer.weights import disk_store

IDENTITY = RunIdentity("test", RUN_UID, 1)
ADAM = OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2)
SGD = OptimizerConfig(type="sgd", lr=1e-2)
MUON = OptimizerConfig(type="muon", lr=1e-3, weight_decay=0.1)
SIGN = OptimizerConfig(type="signSgd", lr=1e-4, weight_decay=0.1)
EIGHT = ADAM.model_copy(update={"state_dtype": "int8"})
HALF_MUON = MUON.model_copy(update={"state_dtype": "bfloat16", "cpu_offload": True})


@pytest.fixture
async def orchestrator(tmp_path: Path) -> AsyncIterator[FakeOrchestrator]:
    async with FakeOrchestrator(RunDirectory(tmp_path / "run"), IDENTITY, steps=9) as running:
        yield running


def digest(learner: Learner) -> str:
    return state_digest(learner.state.policy, learner.state.optimizer)


def saver_of(
    learner: Learner,
    model: Path,
    orchestrator: FakeOrchestrator,
    *,
    asynchronous: bool = True,
    replacements: int = 0,
) -> tuple[Saver, Health]:
    health = Health(step_timeout_s=120)
    link = Link(orchestrator.url, request_headers(IDENTITY, TOKEN), deadline_s=120, watch=health.watch)
    target = SaveTarget(orchestrator.run, IDENTITY, model, link, replacements)
    return Saver(learner.state, target, deadline_s=120, health=health, asynchronous=asynchronous), health


def value(health: Health, name: str, **labels: str) -> float:
    found = health.metrics.registry.get_sample_value(f"echorl_trainer_{name}", labels)
    assert found is not None
    return found


def publisher_of(learner: Learner, ranks: Ranks, orchestrator: FakeOrchestrator, health: Health) -> Publisher:
    store = disk_store(orchestrator.run, 1)
    return Publisher(learner.state.policy, ranks, IDENTITY, probe_token_ids=[1, 2, 3], store=store, watch=health.watch)


async def in_thread(work: Callable[[], None]) -> None:
    await asyncio.wait_for(asyncio.to_thread(work), 240)


@pytest.mark.parametrize(
    "optimizer",
    [ADAM, SGD, MUON, SIGN, EIGHT, HALF_MUON],
    ids=["adamw", "sgd", "muon", "signSgd", "adamw in 8 bits", "muon in bfloat16"],
)
@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_resumed_learner_goes_on_bit_for_bit(
    ranks: Ranks, tmp_path: Path, optimizer: OptimizerConfig, tie: bool
) -> None:
    folder = tiny_model(tmp_path / "model", tie=tie)
    through = tiny_learner(ranks, folder, steps=4, optimizer=optimizer)
    saved = tiny_learner(ranks, folder, steps=2, optimizer=optimizer)
    save_state(saved.state, 2, tmp_path / "checkpoint")
    resumed = tiny_learner(ranks, folder, optimizer=optimizer)
    assert digest(resumed) != digest(saved)
    assert resumed.state.restore(tmp_path / "checkpoint") == 2
    assert digest(resumed) == digest(saved)
    train(resumed, 3, 4)
    assert digest(resumed) == digest(through)
    assert resumed.state.optimizer.param_groups[0]["lr"] == through.state.optimizer.param_groups[0]["lr"]


def test_adam_moments_and_learning_rate_are_restored(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    saved = tiny_learner(ranks, model, steps=3)
    save_state(saved.state, 3, tmp_path / "checkpoint")
    resumed = tiny_learner(ranks, model)
    resumed.state.restore(tmp_path / "checkpoint")
    before, after = saved.state.optimizer, resumed.state.optimizer
    assert after.param_groups[0]["lr"] == before.param_groups[0]["lr"] > 0
    pairs = zip(before.state.values(), after.state.values(), strict=True)
    for old, new in pairs:
        assert old["step"] == new["step"] == 3
        assert torch.equal(old["exp_avg"].full_tensor(), new["exp_avg"].full_tensor())
        assert torch.equal(old["exp_avg_sq"].full_tensor(), new["exp_avg_sq"].full_tensor())
        assert old["exp_avg_sq"].full_tensor().any()


@pytest.mark.parametrize("optimizer", [ADAM, SGD, MUON, SIGN], ids=["adamw", "sgd", "muon", "signSgd"])
def test_settings_that_were_edited_hold_after_the_resume(
    ranks: Ranks, model: Path, tmp_path: Path, optimizer: OptimizerConfig
) -> None:
    def settings(learner: Learner) -> list[dict[str, object]]:
        names = ("weight_decay", "betas", "eps")
        groups = learner.state.optimizer.param_groups
        return [{name: group[name] for name in names if name in group} for group in groups]

    save_state(tiny_learner(ranks, model, steps=1, optimizer=optimizer).state, 1, tmp_path / "checkpoint")
    edited = optimizer.model_copy(update={"weight_decay": 0.3, "betas": (0.5, 0.6)})
    resumed = tiny_learner(ranks, model, optimizer=edited)
    wanted = settings(resumed)
    assert any(group["weight_decay"] == 0.3 for group in wanted)
    resumed.state.restore(tmp_path / "checkpoint")
    assert settings(resumed) == wanted


def test_what_no_resume_may_change_is_refused_by_name_and_nothing_is_taken_over(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    save_state(tiny_learner(ranks, model, steps=1).state, 1, tmp_path / "adamw")
    save_state(tiny_learner(ranks, model, steps=1, optimizer=SIGN).state, 1, tmp_path / "signSgd")
    heavier = tiny_model(tmp_path / "heavier", seed=2)
    cases: list[tuple[str, str, Path, dict[str, Any]]] = [
        ("adamw", r"spec\.seed: found '77', the run was started with '3'; accepted is no change", model, {"seed": 77}),
        ("adamw", r"spec\.model\.name \(its weights\): found '", heavier, {}),
        ("adamw", r"optimizer\.type: found 'muon', the run was started with 'adamw'", model, {"optimizer": MUON}),
        ("signSgd", r"optimizer\.type: found 'sgd', the run was started with 'signSgd'", model, {"optimizer": SGD}),
        (
            "adamw",
            r"optimizer\.stateDtype: found 'int8', the run was started with 'float32'",
            model,
            {"optimizer": EIGHT},
        ),
    ]
    for name, message, folder, changed in cases:
        learner = tiny_learner(ranks, folder, **changed)
        before = digest(learner)
        with pytest.raises(OtherRun, match=message) as caught:
            learner.state.restore(tmp_path / name)
        assert digest(learner) == before
        assert exit_code(caught.value) is ExitCode.BAD_INPUT


def test_moments_may_move_to_host_memory_and_back(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    """They are the same bits in either, so a resume may change it."""
    saved = tiny_learner(ranks, model, steps=2, optimizer=ADAM)
    save_state(saved.state, 2, tmp_path / "checkpoint")
    moved = tiny_learner(ranks, model, optimizer=ADAM.model_copy(update={"cpu_offload": True}))
    moved.state.restore(tmp_path / "checkpoint")
    assert digest(moved) == digest(saved)
    save_state(moved.state, 2, tmp_path / "of moved")
    back = tiny_learner(ranks, model, optimizer=ADAM)
    back.state.restore(tmp_path / "of moved")
    assert digest(back) == digest(saved)


@pytest.mark.parametrize("other", ["a tied model", "another optimizer"])
def test_tensors_of_other_shapes_are_refused_in_checkpoints_that_say_no_more(
    ranks: Ranks, model: Path, tmp_path: Path, other: str
) -> None:
    """As those of older versions, which hold no settings."""
    saved = tiny_learner(ranks, model, steps=1).state
    save_state(replace(saved, fixed={}), 1, tmp_path / "checkpoint")
    tied = tiny_model(tmp_path / "tied", tie=True)
    learner = tiny_learner(ranks, tied) if other == "a tied model" else tiny_learner(ranks, model, optimizer=MUON)
    with pytest.raises(OtherRun, match=r"the checkpoint has shape .*, this run .*: another model") as caught:
        learner.state.restore(tmp_path / "checkpoint")
    assert exit_code(caught.value) is ExitCode.BAD_INPUT
    whole = tiny_learner(ranks, model)
    assert whole.state.restore(tmp_path / "checkpoint") == 1


def test_random_numbers_go_on_where_they_were(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    torch.manual_seed(77)
    random.seed(77)
    torch.rand(3)
    save_state(learner.state, 1, tmp_path / "checkpoint")
    expected = (torch.rand(4), random.random())
    torch.manual_seed(1)
    random.seed(1)
    learner.state.restore(tmp_path / "checkpoint")
    assert torch.equal(torch.rand(4), expected[0])
    assert random.random() == expected[1]


def test_rank_that_the_checkpoint_does_not_know_keeps_its_own_random_numbers(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    saved = tiny_learner(ranks, model, steps=2)
    save_state(saved.state, 2, tmp_path / "checkpoint")
    newcomer = tiny_learner(ranks, model)
    state = replace(newcomer.state, ranks=replace(ranks, rank=1))
    torch.manual_seed(5)
    assert state.restore(tmp_path / "checkpoint") == 2
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(5)))
    assert digest(newcomer) == digest(saved)


def test_digest_sees_one_bit_of_weights_and_of_optimizer_state(ranks: Ranks, model: Path) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    before = digest(learner)
    assert digest(learner) == before
    parameter = next(learner.state.policy.parameters())
    with torch.no_grad():
        parameter.to_local().view(-1)[0] += 1e-3  # type: ignore[attr-defined]
    assert digest(learner) != before
    other = tiny_learner(ranks, model, steps=1)
    next(iter(other.state.optimizer.state.values()))["exp_avg"].to_local().view(-1)[0] += 1e-3
    assert digest(other) != before


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "standing still"])
async def test_save_holds_the_step_it_was_begun_at(
    ranks: Ranks, model: Path, orchestrator: FakeOrchestrator, asynchronous: bool
) -> None:
    learner = tiny_learner(ranks, model, steps=2)
    saver, health = saver_of(learner, model, orchestrator, asynchronous=asynchronous)
    at_two = digest(learner)

    def save_and_train_on() -> None:
        saver.begin(2, None)
        train(learner, 3, 5)
        saver.wait()

    await in_thread(save_and_train_on)
    assert saver.outcomes == {2: "committed"}
    assert health.progress.committed == [2]
    resumed = tiny_learner(ranks, model)
    assert resumed.state.restore(trainer_folder(orchestrator.run.checkpoint(2))) == 2
    assert digest(resumed) == at_two != digest(learner)
    stood = {part: value(health, "checkpoint_stall_seconds_total", part=part) for part in ("copy", "write")}
    assert (stood["copy"] > 0, stood["write"] > 0) == (asynchronous, not asynchronous)
    assert value(health, "checkpoint_write_seconds_total") > 0


@pytest.mark.parametrize("optimizer", [ADAM, HALF_MUON, EIGHT], ids=["adamw", "muon, host memory", "adamw in 8 bits"])
def test_copies_hold_their_step_and_the_next_takes_no_further_memory(
    ranks: Ranks, model: Path, optimizer: OptimizerConfig
) -> None:
    learner = tiny_learner(ranks, model, steps=1, optimizer=optimizer)
    copies = HostCopies(ranks.device)
    first = tensors(copies.stage(learner.state.collect(1)))
    originals = tensors(learner.state.collect(1))
    at_one = {name: one.clone() for name, one in originals.items()}
    size = copies.size_bytes
    assert size == sum(one.nbytes for one in originals.values())
    train(learner, 2, 2)
    assert {name for name, one in originals.items() if torch.equal(one, first[name])} < originals.keys()
    assert all(torch.equal(one, first[name]) for name, one in at_one.items())
    second = tensors(copies.stage(learner.state.collect(2)))
    assert all(torch.equal(one, second[name]) for name, one in tensors(learner.state.collect(2)).items())
    assert {name: one.data_ptr() for name, one in second.items()} == {n: one.data_ptr() for n, one in first.items()}
    assert copies.size_bytes == size


@pytest.mark.parametrize("optimizer", [ADAM, HALF_MUON], ids=["adamw", "muon, host memory"])
def test_a_copy_follows_an_optimizers_loaded_state(ranks: Ranks, model: Path, optimizer: OptimizerConfig) -> None:
    learner = tiny_learner(ranks, model, steps=1, optimizer=optimizer)
    state, copies = learner.state, HostCopies(ranks.device)
    copies.stage(state.collect(1))
    held = deepcopy(state.optimizer.state_dict())
    held["param_groups"][0]["lr"] = 0.125
    for entry in held["state"].values():
        entry.update({name: one + 1 for name, one in entry.items()})
    state.optimizer.load_state_dict(held)
    copied = check_copy(state, copies)
    assert copied["optimizer"]["param_groups"][0]["lr"] == 0.125


@pytest.mark.parametrize("change", ["object", "memory", "entry", "count", "parameter"])
def test_a_copy_follows_what_is_put_in_the_place_of_something_else(ranks: Ranks, model: Path, change: str) -> None:
    learner = tiny_learner(ranks, model, steps=1, optimizer=ADAM)
    state, copies = learner.state, HostCopies(ranks.device)
    copies.stage(state.collect(1))
    with torch.no_grad():
        put_something_else(state, change)
    check_copy(state, copies)


def put_something_else(state: TrainState, change: str) -> None:
    """Where a copy was made from."""
    optimizer = state.optimizer
    entry = next(iter(optimizer.state.values()))
    if change == "object":
        entry["exp_avg"] = entry["exp_avg"] + 1
    elif change == "memory":
        parameter = next(state.policy.parameters())
        assert isinstance(parameter, DTensor)
        parameter._local_tensor.set_(parameter._local_tensor + 1)
    elif change == "entry":
        entry["another"] = torch.ones(3)
    elif change == "count":
        entry["another"] = 7
    else:
        path, before = next(iter(state.policy.named_parameters()))
        after = torch.nn.Parameter(before + 1)
        owner, _, name = path.rpartition(".")
        setattr(state.policy.get_submodule(owner), name, after)
        for group in optimizer.param_groups:
            group["params"] = [after if one is before else one for one in group["params"]]
        optimizer.state[after] = optimizer.state.pop(before)


def check_copy(state: TrainState, copies: HostCopies) -> dict[str, Any]:
    """Compare a copy with what is collected anew; returns it."""
    copied, wanted = copies.stage(state.collect(1)), replace(state).collect(1)
    assert copied["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
    found, expected = tensors(copied), tensors(wanted)
    assert found.keys() == expected.keys()
    assert all(torch.equal(one, found[name]) for name, one in expected.items())
    assert copies.described(state.collect(1)).keys() == copied.keys()
    return copied


def test_copies_after_the_first_take_a_fraction_of_its_calls(ranks: Ranks, model: Path) -> None:
    """The loop stands still for as long as Python takes to begin one, whose time no test can tell on a busy machine."""
    learner = tiny_learner(ranks, model, steps=1, optimizer=ADAM)
    copies = HostCopies(ranks.device)
    calls = [calls_of(lambda: copies.stage(learner.state.collect(1))) for _ in range(2)]
    assert calls[1] < calls[0] / 8


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls, of Python and of C."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What this rank holds of a state's tensors, by path."""
    found: dict[str, torch.Tensor] = {}

    def take(value: object, path: str) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            take(item, f"{path}/{key}")
        if isinstance(value, torch.Tensor):
            found[path] = local(value)

    take(state, "")
    return found


async def test_parts_name_every_file_and_the_weights(ranks: Ranks, model: Path, orchestrator: FakeOrchestrator) -> None:
    learner = tiny_learner(ranks, model, steps=2)
    saver, health = saver_of(learner, model, orchestrator)
    publisher = publisher_of(learner, ranks, orchestrator, health)

    def save() -> None:
        saver.begin(2, publisher.begin(2))
        saver.wait()

    await in_thread(save)
    found, problems = committed(orchestrator.run)
    assert not problems
    verify(found[0].folder, found[0].manifest)
    named = {part.file for part in found[0].manifest.parts}
    written = {str(f.relative_to(found[0].folder)) for f in found[0].folder.rglob("*") if f.is_file()}
    assert named == written - {"manifest.json"}
    assert {"attempt_1/trainer/.metadata", "attempt_1/trainer/__0_0.distcp"} <= named
    weights = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {f"attempt_1/weights/{name}" for name in weights} <= named


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_gang_with_others_in_lost_pods_places_saves_where_no_lost_rank_writes(
    ranks: Ranks, model: Path, orchestrator: FakeOrchestrator, tmp_path: Path, asynchronous: bool
) -> None:
    learner = tiny_learner(ranks, model)
    folder = orchestrator.run.checkpoint(2) / "attempt_1" / "trainer"
    folder.mkdir(parents=True)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        (folder / name).write_bytes(b"of a lost rank")
    saver, _ = saver_of(learner, model, orchestrator, asynchronous=asynchronous, replacements=2)
    train(learner, 1, 2)
    saved = digest(learner)
    await in_thread(lambda: (saver.begin(2, None), saver.wait())[1])
    (report,) = orchestrator.parts[2].values()
    named = {part.file for part in report.parts}
    assert named == {f"attempt_1/replaced_2/trainer/{name}" for name in (".metadata", "__0_0.distcp")}
    again = tiny_learner(ranks, model)
    again.state.restore(trainer_folder(orchestrator.run.checkpoint(2)))
    assert digest(again) == saved


async def test_a_version_that_is_refused_is_never_committed(
    ranks: Ranks, model: Path, orchestrator: FakeOrchestrator
) -> None:
    learner = tiny_learner(ranks, model, steps=2)
    saver, health = saver_of(learner, model, orchestrator)
    publisher = publisher_of(learner, ranks, orchestrator, health)
    with torch.no_grad():
        next(learner.state.policy.parameters()).view(-1)[0] = float("inf")

    def save() -> None:
        saver.begin(2, publisher.begin(2))
        saver.wait()

    with pytest.raises(NonFinite, match="policy version 2"):
        await in_thread(save)
    assert committed(orchestrator.run) == ([], [])
    assert not orchestrator.parts
    assert not list(orchestrator.run.root.rglob("weights")), "nor written where people look for models"


async def test_an_adapter_is_saved_alone_and_merged_with_the_last(
    ranks: Ranks, model: Path, orchestrator: FakeOrchestrator
) -> None:
    lora = LoraConfig(rank=2, alpha=4.0, target_modules=["q_proj"])
    learner = tiny_learner(ranks, model, steps=1, lora=lora)
    saver, health = saver_of(learner, model, orchestrator)
    publisher = publisher_of(learner, ranks, orchestrator, health)

    def save() -> None:
        for step in (1, 2):
            saver.begin(step, publisher.begin(step), last=step == 2)
            saver.wait()

    await in_thread(save)
    found, problems = committed(orchestrator.run)
    assert not problems
    first, last = ({part.file for part in one.manifest.parts} for one in found)
    adapter = {"attempt_1/adapter/adapter_config.json", "attempt_1/adapter/adapter_model.safetensors"}
    merged = {f"attempt_1/weights/{name}" for name in ("model.safetensors", "config.json", "tokenizer.json")}
    assert adapter <= first & last
    assert merged <= last
    assert not any("/weights/" in name for name in first)
    for one in found:
        verify(one.folder, one.manifest)


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "standing still"])
async def test_failing_save_is_reported_and_training_goes_on(
    ranks: Ranks, model: Path, orchestrator: FakeOrchestrator, asynchronous: bool
) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    saver, health = saver_of(learner, model, orchestrator, asynchronous=asynchronous)
    orchestrator.run.checkpoint(1).parent.mkdir(parents=True)
    orchestrator.run.checkpoint(1).write_text("in the way")

    def save_twice() -> None:
        saver.begin(1, None)
        saver.wait()
        train(learner, 2, 2)
        saver.begin(2, None)
        saver.wait()

    await in_thread(save_twice)
    assert saver.outcomes == {1: "abandoned", 2: "committed"}
    error = orchestrator.parts[1][0].error
    assert error is not None
    assert "rank 0: " in error
    assert "step_000001" in error
    assert orchestrator.parts[1][0].parts == []
    assert value(health, "checkpoints_total", state="failed") == 1


async def test_save_waits_for_the_one_before(ranks: Ranks, model: Path, orchestrator: FakeOrchestrator) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    saver, health = saver_of(learner, model, orchestrator)
    await orchestrator.halt()
    saver.begin(1, None)
    second = asyncio.create_task(asyncio.to_thread(saver.begin, 2, None))
    await orchestrator.until(lambda: health.progress.phase == "saving")
    assert health.progress.state()["waiting_for"] == "the orchestrator to acknowledge checkpoint 1"
    assert saver.last_step == 1
    await orchestrator.start()
    await asyncio.wait_for(second, 120)
    await in_thread(saver.wait)
    assert orchestrator.committed == [1, 2]
    assert value(health, "checkpoint_waits_total") == 2, "one of the second save, one of the end"
    assert value(health, "checkpoint_stall_seconds_total", part="wait") > 0


async def test_fenced_saver_ends_the_loop(ranks: Ranks, model: Path, orchestrator: FakeOrchestrator) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    saver, _ = saver_of(learner, model, orchestrator)
    orchestrator.identity = RunIdentity("test", RUN_UID, 2)
    saver.begin(1, None)
    with pytest.raises(Fenced):
        await in_thread(saver.wait)


def test_refused_write_is_named_wherever_in_a_file_it_happens(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    save_state(learner.state, 1, tmp_path / "whole")
    size = max(file.stat().st_size for file in (tmp_path / "whole").iterdir())
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(size // 2, size, size // 16):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
        try:
            with pytest.raises(CheckpointException) as caught:
                save_state(learner.state, 1, tmp_path / str(limit))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert "OSError: [Errno 27] File too large" in reason(caught.value, 0)


@pytest.mark.parametrize("missing", [".metadata", "__0_0.distcp"])
def test_missing_file_is_named(ranks: Ranks, model: Path, tmp_path: Path, missing: str) -> None:
    learner = tiny_learner(ranks, model, steps=1)
    save_state(learner.state, 1, tmp_path / "trainer")
    (tmp_path / "trainer" / missing).unlink()
    with pytest.raises(Unreadable, match=missing.replace(".", r"\.")):
        learner.state.restore(trainer_folder(tmp_path))


def test_a_manifest_that_names_no_state_of_the_trainer_is_named(tmp_path: Path) -> None:
    manifest = CheckpointManifest(
        run_uid=RUN_UID,
        attempt=1,
        step=2,
        policy_version=2,
        num_ranks=1,
        committed_at="2026-01-01T00:00:00Z",
        history=NO_HISTORY,
        parts=[],
    )
    write_manifest(tmp_path, manifest)
    with pytest.raises(Unreadable, match=r"its manifest names no trainer/\.metadata"):
        trainer_folder(tmp_path)


def test_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"neither manifest\.json nor trainer/"):
        trainer_folder(tmp_path)
