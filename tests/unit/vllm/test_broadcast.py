"""Versions by broadcast from a trainer's rank to workers, by gloo, and what happens when that does not work."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from echorl_collective.group import BroadcastGroup, library_of, store_at
from echorl_core.wire.broadcast import JoinRequest
from echorl_core.wire.engine import StageRequest
from echorl_testing.engines.broadcasting import BroadcastingTrainer
from echorl_testing.engines.staging_worker import RUN, SHAPE, Worker
from echorl_trainer.broadcast import JoinRefused
from echorl_trainer.part_sender import Turn, turn_key
from echorl_trainer.seeded import write_seeded_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A tied one: a publication leaves the head out, which an engine on the CPU needs all the same."""
    folder = tmp_path_factory.mktemp("model") / "m"
    write_seeded_model(folder, SHAPE, 0, tie=True)
    return folder, True


@pytest.fixture(params=[1, 2], ids=["one_rank", "two_ranks"])
def trainer(environment: Path, model: tuple[Path, bool], request: pytest.FixtureRequest) -> BroadcastingTrainer:
    return BroadcastingTrainer(model[0], run_uid=RUN, token="secret", files=5, ranks=request.param)


def staged(request: StageRequest, *workers: Worker) -> list[tuple[str, str | None, bool]]:
    for worker in workers:
        worker.weights.stager.stage(request)
    found = [worker.settled() for worker in workers]
    return [(one.state, one.error, one.broadcast) for one in found]


def applied(request: StageRequest, trainer: BroadcastingTrainer, worker: Worker) -> bool:
    """Whether the worker's model is the version bit for bit, once it is applied."""
    assert worker.weights.apply(request.policy).error is None
    wanted = trainer.values(request.version)
    assert torch.equal(worker.model["lm_head.weight"], wanted["model.embed_tokens.weight"])
    return all(torch.equal(worker.model[name], tensor) for name, tensor in wanted.items())


BROADCAST, FETCHED = ("staged", None, True), ("staged", None, False)


def test_versions_go_through_one_group_as_long_as_the_same_workers_ask(
    trainer: BroadcastingTrainer, model: Any
) -> None:
    workers = [Worker(model), Worker(model)]
    for version in (1, 2, 3):
        request = trainer.publish(version)
        assert staged(request, *workers) == [BROADCAST, BROADCAST]
        assert all(applied(request, trainer, worker) for worker in workers)
    size = sum(one.nbytes for one in trainer.tensors.values())
    assert trainer.sent == [2 * size] * 3


def test_one_that_comes_late_fetches_and_is_in_the_next_group(trainer: BroadcastingTrainer, model: Any) -> None:
    early, late = Worker(model), Worker(model)
    for version, (first, second) in {1: (BROADCAST, FETCHED), 2: (BROADCAST, BROADCAST)}.items():
        request = trainer.publish(version)
        if version == 1:
            assert staged(request, early) == [first]
            assert staged(request, late) == [second]
        else:
            assert staged(request, early, late) == [first, second]
        assert applied(request, trainer, early)
        assert applied(request, trainer, late)


def test_one_that_goes_is_not_waited_for_again(trainer: BroadcastingTrainer, model: Any) -> None:
    stays, goes = Worker(model), Worker(model)
    assert staged(trainer.publish(1), stays, goes) == [BROADCAST, BROADCAST]
    for version in (2, 3):
        request = trainer.publish(version)
        assert staged(request, stays) == [BROADCAST]
        assert applied(request, trainer, stays)


def test_other_shapes_and_dtypes_are_refused_by_name_before_anything_is_sent(
    environment: Path, model: tuple[Path, bool]
) -> None:
    trainer, worker = BroadcastingTrainer(model[0], run_uid=RUN, token="secret", dtype=torch.bfloat16), Worker(model)
    ((state, error, _),) = staged(trainer.publish(1), worker)
    assert state == "failed"
    assert error is not None
    assert "dtype BF16, accepted: F32" in error
    assert trainer.sent == []
    assert worker.model == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"library": "nccl 2.0"}, "library: found nccl 2.0, the trainer has gloo"),
        ({}, "attempt 1 version 7 has begun, or is over"),
    ],
)
def test_a_seat_is_refused_by_name(trainer: BroadcastingTrainer, change: dict[str, str], message: str) -> None:
    trainer.publish(1)
    library = f"gloo, torch {torch.__version__.partition('+')[0]}"
    asked = JoinRequest(**{"worker": "w", "device": "cpu", "library": library, **change})
    with pytest.raises(JoinRefused, match=message):
        trainer.broadcaster.join(1, 7, asked)


def test_what_arrives_damaged_is_fetched(trainer: BroadcastingTrainer, model: Any) -> None:
    """The memory is changed behind the manifest's back, and put right before it is fetched."""
    worker, request = Worker(model), trainer.publish(1)
    damaged, put_right = trainer.newest.files[-1], threading.Event()
    data, right = damaged.data, damaged.data.clone()
    data[-1] += 1

    def put() -> None:
        if len(trainer.sent) == 1:
            data.copy_(right)
            put_right.set()

    def read(attempt: int, version: int, name: str) -> Any:
        assert name != damaged.layout.name or put_right.wait(60)
        return reading(attempt, version, name)

    reading = trainer.store.reading
    trainer.after_sending, trainer.store.reading = put, read  # type: ignore[method-assign]
    assert staged(request, worker) == [FETCHED]
    assert len(trainer.sent) == 1
    assert applied(request, trainer, worker)
    # The worker has left the group, which the trainer knows as whole.
    assert staged(trainer.publish(2), worker) == [BROADCAST]


def test_a_peer_that_hangs_mid_broadcast_costs_the_others_nothing(trainer: BroadcastingTrainer, model: Any) -> None:
    stays, request = Worker(model), trainer.publish(1)
    cpu = torch.device("cpu")
    asked = JoinRequest(worker="mute", device="cpu", library=library_of(cpu))
    promised = trainer.broadcaster.join(1, 1, asked)
    stays.weights.stager.stage(request)
    seat = promised.result(30)
    # It connects to all, and then takes part in nothing.
    mute = BroadcastGroup(seat, store_at("127.0.0.1", seat.port), cpu)
    status = stays.settled()
    assert (status.state, status.error) == ("staged", None)
    assert applied(request, trainer, stays)
    for version in (2, 3):
        request = trainer.publish(version)
        assert staged(request, stays) == [BROADCAST]
        assert applied(request, trainer, stays)
    trainer.health.watch.check()
    mute.close()


def test_a_rank_of_the_trainer_that_dies_costs_a_broadcast(environment: Path, model: tuple[Path, bool]) -> None:
    """The test is the second rank: it takes its place in the group, and leaves."""
    trainer = BroadcastingTrainer(model[0], run_uid=RUN, token="secret", files=5, ranks=2, sends=False)
    worker, request = Worker(model), trainer.publish(1)
    worker.weights.stager.stage(request)
    store = store_at("127.0.0.1", trainer.broadcaster.port)
    turn = msgspec.json.decode(store.get(turn_key(0)), type=Turn)
    assert turn.seat is not None
    assert list(turn.sizes) == [one.name for one in trainer.layouts]
    assert set(turn.seat.senders) == {0, 1}
    BroadcastGroup(replace(turn.seat, rank=1), store, torch.device("cpu")).close()
    status = worker.settled()
    assert (status.state, status.error, status.broadcast) == FETCHED
    assert applied(request, trainer, worker)
    assert trainer.sent == []
    trainer.health.watch.check()
