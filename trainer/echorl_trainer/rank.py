"""Puts one rank together, runs its loop, and turns every end into an exit code. Called by ``__main__`` alone."""

import math
import os
from functools import partial
from pathlib import Path
from typing import Literal

import structlog

from echorl_collective.group import gpu_of, store_at
from echorl_core import names
from echorl_core.attempts import Prepared, read_prepared
from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.links import chosen_transfer
from echorl_core.memory_copies import Restarted, mirror_note_from, slots_from
from echorl_core.names import ExitCode, Role
from echorl_core.run_token import weights_key
from echorl_core.rundir import RunDirectory, write_file
from echorl_core.termination_message import TerminationMessage, message_of_end
from echorl_core.wire.batch import WIRE_VERSION, StopNotice
from echorl_trainer.broadcast import Broadcaster
from echorl_trainer.checkpoint import Saver, SaveTarget
from echorl_trainer.client import OrchestratorBatches, Outbox, WrongBatch
from echorl_trainer.exports import Exporter
from echorl_trainer.health import Health, Phase, RankProgress
from echorl_trainer.learner import build_learner
from echorl_trainer.link import Fenced, Link, OrchestratorLost, Refused
from echorl_trainer.lora import published_parameters
from echorl_trainer.losses import HookError
from echorl_trainer.memory import LimitTooLow, MemoryCopies
from echorl_trainer.model import Policy
from echorl_trainer.notices import Gang, Notice
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.part_sender import PartSender
from echorl_trainer.probe import probe_ids
from echorl_trainer.profiling import Profiler
from echorl_trainer.publish import Publisher
from echorl_trainer.server import Server
from echorl_trainer.sharing import Sharers, sharers_of
from echorl_trainer.state import OtherRun, TrainState, Unreadable, trainer_folder
from echorl_trainer.step import NonFinite
from echorl_trainer.token_export import TokenExport, tokenizer_of
from echorl_trainer.train import LastCheckpointLost, Trainer
from echorl_trainer.weights import MemoryStore, WeightStore, disk_store

log = structlog.get_logger()

LATE_PROBE_FROM = 4
"""Micro-batches of a step: a version that is probed beside it is visible by a quarter of its time later at the most."""


class BadInput(Exception):
    """The config, or the model that it names, cannot be trained."""


def run_to_words(
    config: TrainerConfig, identity: RunIdentity, token: str, notice: Notice | None = None
) -> TerminationMessage:
    """``run_rank``, with every failure logged and told by an exit code."""
    health = Health(step_timeout_s=config.step_timeout_s)
    code, message, unexpected = ExitCode.OK, "finished: the orchestrator has no further batch", None
    try:
        stop = run_rank(config, identity, token, health, notice)
        if stop.reason == "notice":
            saved = f"step {stop.step} is saved" if stop.step in health.progress.committed else "nothing was saved"
            code, message = ExitCode.NOTICE, f"its gang was given notice: {saved}"
    except Exception as error:
        code, message = exit_code(error), f"{type(error).__name__}: {error}"
        known = Unreadable | OrchestratorLost | WrongBatch | Refused | LastCheckpointLost
        unexpected = error if code is ExitCode.CRASH and not isinstance(error, known) else None
        log.error("the trainer ends", reason=type(error).__name__, error=str(error), exc_info=unexpected is not None)
    step = health.progress.step
    return message_of_end(Role.TRAINER, code, message, attempt=identity.attempt, step=step, error=unexpected)


def exit_code(error: BaseException) -> ExitCode:
    """What an exception that ends the role means to whoever restarts it."""
    meanings = {
        BadInput: ExitCode.BAD_INPUT,
        HookError: ExitCode.BAD_INPUT,
        OtherRun: ExitCode.BAD_INPUT,
        LimitTooLow: ExitCode.BAD_INPUT,
        NonFinite: ExitCode.NON_FINITE,
        Fenced: ExitCode.FENCED,
    }
    return next((code for kind, code in meanings.items() if isinstance(error, kind)), ExitCode.CRASH)


def run_rank(
    config: TrainerConfig,
    identity: RunIdentity,
    token: str,
    health: Health,
    notice: Notice | None = None,
    *,
    late_probe_from: int | None = None,
) -> StopNotice:
    """Run one rank until its work is done; how it was told so. ``notice``: learns of what it needs to save.

    ``late_probe_from``: see ``Trainer``; None: ``LATE_PROBE_FROM`` on GPUs. On CPUs versions are probed at once then: a
    forward is work of its own there, whenever it is launched.

    Raises:
        BadInput, NonFinite, Fenced, OrchestratorLost, Unreadable, ...: see ``exit_code``.
    """
    run = RunDirectory(Path(config.run_dir))
    prepared = read_prepared(run, identity.attempt)
    if prepared is None:
        raise Unreadable(f"{run.attempt(identity.attempt) / 'prepared.json'}: missing; prepare writes it first")
    health.progress.committed = [sealed.step for sealed in prepared.committed]
    restarted, held = Restarted.from_environment(os.environ), None
    try:
        ranks = connect(config.replicate, timeout_s=config.step_timeout_s, context=config.context, expert=config.expert)
        link = Link(
            config.orchestrator_url,
            request_headers(identity, token, 0 if restarted is None else restarted.count),
            deadline_s=config.step_timeout_s,
            watch=health.watch,
        )
        replacements = 0 if restarted is None else restarted.replacements
        store, server = serve(config, identity, ranks, health, key=weights_key(token), replacements=replacements)
        learner = build_learner(config, ranks)
        probe = probe_ids(config.model, identity.uid, config.probe_tokens)
    except ValueError as error:
        raise BadInput(str(error)) from error
    if config.token_export_every is not None and ranks.speaks:
        decode = tokenizer_of(Path(config.model.path))
        learner.runner.export = TokenExport(run, config.token_export_every, decode, mode=config.mode)
    mode = transfer_mode(config, ranks, learner.state.policy)
    num_serving = 1 if mode == "disk" or learner.state.policy.adapter is not None else ranks.replica_size
    sharers = sharers_of(ranks.rank, num_serving, timeout_s=config.step_timeout_s)
    broadcaster = None
    if mode == "nccl" and sharers is not None:
        broadcaster = broadcaster_of(config, ranks, health, sharers, attempt=identity.attempt)
        server.broadcasts = broadcaster if isinstance(broadcaster, Broadcaster) else None
    target = SaveTarget(run, identity, Path(config.model.path), link, replacements)
    saver = Saver(
        learner.state, target, deadline_s=config.step_timeout_s, health=health, asynchronous=config.async_save
    )
    memory = memory_copies(config, learner.state, health)
    if memory is not None and restarted is not None:
        with health.progress.during(Phase.RESUMING, "all ranks to read their copies in memory"):
            held = memory.resume(restarted, link, run, identity.attempt)
    else:
        resume(learner.state, run, prepared, health.progress)
    outbox = Outbox(link, health.watch) if ranks.rank == 0 else None
    source = OrchestratorBatches(
        link,
        run_uid=identity.uid,
        attempt=identity.attempt,
        rank=ranks.rank,
        num_ranks=ranks.world_size,
        context=ranks.context_size,
        idle=partial(idle, health.progress, outbox),
    )
    if notice is not None:
        notice.gang = Gang(link, lambda: saver.last_seconds, health, identity.attempt, ranks.rank)
    stop = Trainer(
        learner,
        source,
        Publisher(
            learner.state.policy,
            ranks,
            identity,
            probe_token_ids=probe,
            store=store if sharers is not None else None,
            watch=health.watch,
            deadline_s=config.step_timeout_s,
            deltas=config.weight_delta == "auto",
            broadcaster=broadcaster,
            engine_quantization=config.engine_quantization,
            sharers=sharers,
        ),
        saver=saver,
        outbox=outbox,
        profiler=Profiler(
            run, attempt=identity.attempt, rank=ranks.rank, device=ranks.device, steps=config.profile_steps
        ),
        exporter=exporter_of(config, run, health, ranks.rank, num_serving, replacements=replacements),
        health=health,
        attempt=identity.attempt,
        start_step=prepared.resume_step,
        late_probe_from=late_probe_from or (LATE_PROBE_FROM if ranks.device.type == "cuda" else None),
        memory=memory,
        held=held,
    ).train()
    disconnect()
    return stop


def memory_copies(config: TrainerConfig, state: TrainState, health: Health) -> MemoryCopies | None:
    """What copies the state to memory that outlives this process; None: the run has none. Collective.

    Raises:
        BadInput: the state does not fit.
    """
    slots = slots_from(os.environ)
    if config.memory is None or slots is None:
        return None
    try:
        return MemoryCopies(
            state,
            slots,
            config.memory,
            config.optimizer,
            deadline_s=config.step_timeout_s,
            health=health,
            mirror=mirror_note_from(os.environ),
        )
    except LimitTooLow as error:
        raise BadInput(str(error)) from error


def transfer_mode(config: TrainerConfig, ranks: Ranks, policy: Policy) -> Literal["http", "disk", "nccl"]:
    """How versions come to the engines; chosen here where the config leaves it open, on all ranks alike."""
    if config.weight_mode != "auto":
        return config.weight_mode
    size = sum(math.prod(one.shape) for one in published_parameters(policy).values()) * policy.dtype.itemsize
    choice = chosen_transfer(size, trainer_on_gpu=ranks.device.type == "cuda", engines_on_gpus=config.engines_on_gpus)
    log.info("weight transfer is chosen", mode=choice.mode, why=choice.why)
    return choice.mode


def broadcaster_of(
    config: TrainerConfig, ranks: Ranks, health: Health, sharers: Sharers, *, attempt: int
) -> Broadcaster | PartSender:
    """What broadcasts versions from this rank: all of it, or its part; collective over the ranks that serve."""
    first = None
    if sharers.is_first:
        sent = health.metrics.sent_bytes.labels("broadcast").inc
        first = Broadcaster(ranks.device, health.watch, attempt=attempt, sent=sent)
    if sharers.size == 1 and first is not None:
        return first
    port = 0 if first is None else first.port
    met = sharers.exchanged((config.advertise_host or config.publish_host, port, gpu_of(ranks.device)))
    if first is not None:
        first.share([gpu for _, _, gpu in met])
        return first
    host, port, _ = met[0]
    return PartSender(ranks.device, health.watch, rank=ranks.rank, store=store_at(host, port))


def exporter_of(
    config: TrainerConfig, run: RunDirectory, health: Health, rank: int, num_serving: int, *, replacements: int
) -> Exporter | None:
    """What exports this rank's part of the weights alone; None: nothing does. Collective."""
    if config.weights_only_every is None:
        return None
    sharers = sharers_of(rank, num_serving, timeout_s=config.step_timeout_s)
    if sharers is None:
        return None
    return Exporter(
        run,
        Path(config.model.path),
        every=config.weights_only_every,
        keep_last=config.weights_only_keep_last,
        health=health,
        deadline_s=config.step_timeout_s,
        sharers=sharers,
        replacements=replacements,
    )


def request_headers(identity: RunIdentity, token: str, restarts: int = 0) -> dict[str, str]:
    """Headers of every call to the orchestrator. ``restarts``: in place, before this process."""
    own = {names.HEADER_WIRE: str(WIRE_VERSION), names.HEADER_TOKEN: token, names.HEADER_RESTARTS: str(restarts)}
    return {**identity.headers(), **own}


def idle(progress: RankProgress, outbox: Outbox | None) -> None:
    """Called while the orchestrator lives but has no batch yet."""
    progress.beat(Phase.WAITING_BATCH)
    if outbox is not None:
        outbox.remind()


def resume(state: TrainState, run: RunDirectory, prepared: Prepared, progress: RankProgress) -> None:
    """Take over the checkpoint that prepare chose, if it chose one; collective.

    Raises:
        Unreadable: it cannot be read, or holds another step.
        OtherRun: it was made with another model, optimizer or seed.
    """
    if prepared.checkpoint is None:
        return
    checkpoint = run.root / prepared.checkpoint
    with progress.during(Phase.RESUMING, f"{checkpoint} to be read"):
        found = state.restore(trainer_folder(checkpoint))
    if found != prepared.resume_step:
        raise Unreadable(f"{checkpoint}: holds step {found}, prepared.json says {prepared.resume_step}")
    log.info("resumed", step=found, checkpoint=str(checkpoint))


def serve(
    config: TrainerConfig, identity: RunIdentity, ranks: Ranks, health: Health, *, key: str, replacements: int
) -> tuple[WeightStore | None, Server]:
    """Start this rank's server, write its port, and open the store of published weights.

    ``key`` fetches them over HTTP. No store on ranks that will never serve any.
    """
    run = RunDirectory(Path(config.run_dir))
    server = Server(identity, ranks.rank, health, weights_key=key)
    # By its place on the host: in pods, each of which has an address of its own, probes ask at fixed ports.
    bound = server.start(config.publish_host, config.metrics_port + ranks.local_rank if config.metrics_port else 0)
    store: WeightStore | None = None
    if ranks.rank == 0 and config.weight_mode == "disk":
        store = disk_store(run, identity.attempt, replacements)
    elif config.weight_mode != "disk" and ranks.rank < ranks.replica_size:
        host = config.advertise_host or config.publish_host
        url = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"
        store = server.weights = MemoryStore(identity.attempt, url)
    write_file(run.attempt(identity.attempt) / f"trainer-{ranks.rank}.port", f"{bound}\n".encode())
    return store, server
