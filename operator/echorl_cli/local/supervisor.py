"""Supervises one run on this machine, as the operator does in a cluster.

One loop takes events in order (a process ended, the orchestrator's state changed, somebody asked to stop) and alone
decides; tasks carry decisions out and report back as events. A task that fails ends the run.
"""

import asyncio
import secrets
import signal
import time
from contextlib import AsyncExitStack, suppress
from functools import partial

import aiohttp

from echorl_cli.local.deciding import Standing, decisions
from echorl_cli.local.fleet import Fleet, last_lines
from echorl_cli.local.health import HealthWatch, Quarantines
from echorl_cli.local.journal import Journal
from echorl_cli.local.launch import LocalRun
from echorl_cli.local.mailbox import Mailbox
from echorl_cli.local.outcome import Outcome, Snapshot, View, asking_to_stop, ignore_stops, signal_name
from echorl_cli.local.processes import Child, Children
from echorl_cli.local.progress import RunProgress
from echorl_cli.local.statewatch import StateWatch
from echorl_core.attempts import Policy
from echorl_core.memory_copies import Restarted
from echorl_core.names import NEVER_RESTARTED, ExitCode, Phase, Role
from echorl_core.prepare import prepare
from echorl_core.restarts import Action, Death, Decision, Ledger
from echorl_core.wire.run_state import RunState

_OBSERVE_S = 5.0
_TICK_S = 1.0


class Supervisor:
    """Runs one LocalRun to its end. Used once."""

    def __init__(self, plan: LocalRun, view: View) -> None:
        self._plan = plan
        self._view = view
        self._token = secrets.token_hex(32)
        self._journal = Journal(plan.run.root, plan.name, plan.uid)
        self._mailbox = Mailbox[Outcome](Outcome.of_error, self._show)
        self._ledger = Ledger()
        self._quarantines = Quarantines(plan.configs.orchestrator.update_deadline_s)
        self._progress = RunProgress()
        self._deaths: list[Death] = []
        self._signal: int | None = None
        self._starting_attempt = False
        self._restarts_in_place = 0
        """Of this attempt."""
        self._gang_due = 0
        """Number of the restart whose ranks are still to be started; 0: of none."""
        self._orchestrator_due = False
        """Whether one is still to be started, of this attempt."""
        self._ranks_change = asyncio.Lock()
        self._void_attempt = 0
        """What this attempt's orchestrator and ranks still do is of no interest, nor that of older ones."""
        self._ending = False
        self._told_problem: str | None = None

    async def run(self) -> Outcome:
        """Start everything, supervise, end everything; nothing is left running when this returns or raises."""
        loop, posting, root = asyncio.get_running_loop(), self._mailbox.posting, self._plan.run.root
        stops = asking_to_stop()
        for number in stops:
            loop.add_signal_handler(number, posting(self._on_signal), number)
        self._children = Children(
            root, secrets.token_hex(8), on_exit=posting(self._on_exit), on_error=posting(Outcome.of_error)
        )
        self._fleet = Fleet(self._plan, self._children, self._token)
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            stack.push_async_callback(self._end_everything)
            await self._children.open()
            url, identity = self._plan.orchestrator_url, lambda: self._fleet.identity
            self._states = StateWatch(session, url, self._token, identity, posting(self._on_state))
            health = HealthWatch(self._plan, session, lambda: self._children.living, posting(self._on_hung))
            for background in (health.run(), self._states.run(), self._children.mind_keeper(), self._tick()):
                self._mailbox.do(background)
            self._begin_attempt(self._plan.resume, 0.0)
            try:
                outcome = await self._mailbox.run()
            except BaseException as error:
                self._journal.enter(Phase.FAILED, f"the supervisor failed: {error!r}")
                raise
        if not self._journal.has_folder:
            outcome = Outcome.without_folder(root)
        self._journal.enter(outcome.phase, outcome.reason)
        ignore_stops(stops)
        self._journal.ended(outcome.exit_code)
        self._tell_journal()
        self._show()
        return outcome

    # Handlers.

    def _on_exit(self, child: Child) -> Outcome | None:
        code = ExitCode.CRASH if child.exit_code is None else child.exit_code
        self._journal.event("exit", process=child.name, exit_code=code, expected=child.expected, why=child.why_killed)
        if self._ending or (child.expected and child.why_killed is None):
            return None
        if child.role is not Role.INFERENCE and child.attempt <= self._void_attempt:
            return None
        if code == ExitCode.OK and child.role is not Role.INFERENCE and child.why_killed is None:
            return self._on_work_done(child)
        if code == ExitCode.STOPPED and child.role is Role.ORCHESTRATOR:
            self._end_with(Outcome.stopped())
            return None
        death = Death(child.role, child.name, code, child.why_killed)
        self._view.event(f"{death.cause}; the end of {child.log}:\n{last_lines(child.log)}")
        if child.role is Role.INFERENCE:
            return None if self._signal is not None else self._carry_out([death], child.index)
        self._note_death(death)
        return None

    def _on_work_done(self, child: Child) -> Outcome | None:
        if child.role is Role.ORCHESTRATOR:
            step = self._progress.step
            unfinished = self._signal is not None and step is not None and step < self._max_steps
            self._end_with(Outcome.stopped() if unfinished else Outcome.succeeded())
        elif not any(rank.exit_code is None for rank in self._fleet.ranks.values()):
            self._mailbox.do(self._expect_orchestrator(self._fleet.identity.attempt))
        return None

    def _on_hung(self, child: Child, why: str) -> None:
        if child.exit_code is None and not child.expected:
            child.why_killed = why
            self._mailbox.do(self._children.end(child, grace_s=0.0))

    def _on_state(self, state: RunState) -> None:
        lost = self._progress.note(state)
        if lost:
            self._view.event(f"{lost}; training goes on, and the checkpoint before stays")
        self._ledger = self._ledger.after_progress(self._progress.highest_step, self._plan.restart_policy)
        if state.phase is Phase.RUNNING and self._signal is None and not self._ending:
            self._journal.enter(Phase.RUNNING, "")

    def _on_signal(self, number: int) -> Outcome | None:
        first, self._signal = self._signal is None, number
        self._journal.event("signal", signal=signal_name(number))
        if not first:
            return Outcome.stopped_at_once(number, f"{signal_name(number)} twice")
        if self._starting_attempt or not self._fleet.ranks:
            return Outcome.stopped()
        self._view.event(f"{signal_name(number)}: saving a last checkpoint, then stopping; once more stops at once")
        self._mailbox.do(self._states.stop())
        return None

    def _on_settled(self) -> Outcome | None:
        """Decide over orchestrator and ranks that died together."""
        if self._starting_attempt and self._deaths:
            self._mailbox.do(self._settle())
            return None
        deaths, self._deaths = self._deaths, []
        failure = self._progress.failure
        if failure is not None and failure.exit_code is not None and failure.exit_code in NEVER_RESTARTED:
            death = Death(Role.ORCHESTRATOR, "orchestrator-0", failure.exit_code, message=failure.message)
            deaths.insert(0, death)
        if self._ending or not deaths:
            return None
        return self._carry_out(deaths)

    def _on_no_step(self, silent_s: float) -> None:
        why = f"no step for {silent_s:.0f} s (stallPolicy.noStepFor)"
        self._progress.moved()
        self._view.event(why)
        self._note_death(Death(Role.TRAINER, "the gang", -int(signal.SIGKILL), why))

    # Decisions.

    def _note_death(self, death: Death) -> None:
        self._deaths.append(death)
        if len(self._deaths) == 1:
            self._mailbox.do(self._settle())

    def _carry_out(self, deaths: list[Death], engine: int | None = None) -> Outcome | None:
        standing = Standing(
            ledger=self._ledger,
            gang_is_whole=self._fleet.gang_is_whole or self._gang_due > 0,
            is_held=self._fleet.is_held,
            orchestrator_is_seen_to=self._orchestrator_due or self._fleet.orchestrator_lives,
        )
        for decision in decisions(deaths, standing, self._plan.restart_policy, self._plan.rules):
            if decision.action is Action.FAIL:
                return Outcome.failed(decision.reason, decision.exit_code)
            if self._signal is not None:
                return Outcome.stopped_at_once(self._signal, f"stopped: {decision.reason}")
            self._count(decision)
            if decision.action is Action.NEW_ATTEMPT:
                self._begin_attempt(Policy.AUTO, decision.delay_s, decision.reason)
            elif decision.action is Action.RESTART_GANG:
                self._restarts_in_place += 1
                self._fleet.give_up_ranks()
                restarted = Restarted(self._restarts_in_place, decision.reason)
                self._gang_due = self._restarts_in_place
                self._mailbox.do(self._restart_gang(restarted, decision.delay_s))
            elif engine is not None:
                self._mailbox.do(self._restart_engine(engine, decision.delay_s))
            else:
                self._orchestrator_due = True
                self._mailbox.do(self._restart_orchestrator(decision.delay_s))
        return None

    def _count(self, decision: Decision) -> None:
        if decision.role is not None:
            if decision.counts:
                self._ledger = self._ledger.with_restart(decision.role, self._progress.highest_step)
            self._journal.restarted(decision.role, decision.reason)
            self._view.event(f"restarting {decision.role} in {decision.delay_s:.0f} s")

    def _begin_attempt(self, policy: Policy, delay_s: float, reason: str | None = None) -> None:
        if self._starting_attempt:
            raise RuntimeError("an attempt began while another one was starting")
        self._starting_attempt = True
        self._void_attempt = self._fleet.identity.attempt
        self._progress.forget()
        if reason is not None:
            self._journal.enter(Phase.RESTARTING, reason)
        self._mailbox.do(self._start_attempt(policy, delay_s))

    def _end_with(self, outcome: Outcome) -> None:
        self._ending = True
        self._mailbox.do(self._wait_for_ranks(outcome))

    # Tasks.

    async def _start_attempt(self, policy: Policy, delay_s: float) -> None:
        async with self._ranks_change:
            await self._fleet.end_gang()
        await asyncio.sleep(delay_s)
        self._restarts_in_place, self._gang_due, self._orchestrator_due = 0, 0, False
        identity = self._fleet.begin_attempt()
        self._journal.enter(Phase.PREPARING, "choosing the step to start from", attempt=identity.attempt)
        step = self._plan.resume_step if policy is Policy.FROM_STEP else None
        prepared = await asyncio.to_thread(
            prepare, self._plan.run, identity, policy=policy, step=step, on_existing=self._plan.on_existing
        )
        self._view.event("\n".join(f"attempt {identity.attempt}: {line}" for line in prepared.lines()))
        self._progress.reached(prepared.resume_step)
        self._journal.enter(Phase.STARTING, "waiting for engines, orchestrator and trainer")
        await self._fleet.start_missing_engines()
        await self._fleet.start_orchestrator()
        await self._fleet.start_ranks()
        self._progress.moved()
        self._starting_attempt = False

    async def _restart_gang(self, restarted: Restarted, delay_s: float) -> None:
        """All ranks again, from memory, while orchestrator and engines go on."""
        attempt = self._fleet.identity.attempt
        await self._fleet.end_ranks()
        await asyncio.sleep(delay_s)
        async with self._ranks_change:
            if attempt == self._fleet.identity.attempt and not self._starting_attempt:
                await self._fleet.start_ranks(restarted)
                if self._gang_due == restarted.count:
                    self._gang_due = 0

    async def _restart_engine(self, index: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._fleet.start_engine(index)

    async def _restart_orchestrator(self, delay_s: float) -> None:
        attempt = self._fleet.identity.attempt
        await asyncio.sleep(delay_s)
        if attempt == self._fleet.identity.attempt and not self._starting_attempt:
            await self._fleet.start_orchestrator()
            self._orchestrator_due = False

    async def _settle(self) -> None:
        await asyncio.sleep(self._plan.limits.settle)
        self._mailbox.post(self._on_settled)

    async def _expect_orchestrator(self, attempt: int) -> None:
        """All ranks have finished; so should the orchestrator."""
        await asyncio.sleep(self._plan.limits.part)
        if attempt == self._fleet.identity.attempt and self._fleet.orchestrator_lives and not self._ending:
            why = "every rank ended, and the orchestrator goes on"
            self._mailbox.post(partial(self._note_death, Death(Role.TRAINER, "the gang", int(ExitCode.OK), why)))

    async def _wait_for_ranks(self, outcome: Outcome) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.limits.part):
                for child in list(self._fleet.ranks.values()):
                    await self._children.wait(child)
        self._mailbox.post(lambda: outcome)

    async def _tick(self) -> None:
        """Whatever depends on time alone."""
        observed = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            if not self._journal.has_folder:
                self._mailbox.post(partial(Outcome.without_folder, self._plan.run.root))
            if now - observed > _OBSERVE_S:
                observed = now
                await self._children.observe()
                self._journal.save()
                self._tell_journal()
            for name, why in self._quarantines.overdue(self._progress.engines, now).items():
                if (engine := self._fleet.engine_at(name)) is not None:
                    self._mailbox.post(partial(self._on_hung, engine, why))
            silent = self._progress.silent_s(now)
            working = self._journal.phase is Phase.RUNNING and not self._starting_attempt and not self._ending
            unfinished = (self._progress.step or 0) < self._max_steps
            if working and unfinished and silent > self._plan.limits.no_step:
                self._mailbox.post(partial(self._on_no_step, silent))
            self._show()

    async def _end_everything(self) -> None:
        self._ending = True
        await self._mailbox.cancel()
        await self._children.settle()
        await asyncio.gather(self._fleet.end_gang(grace_s=self._plan.limits.grace), self._fleet.end_engines())
        await self._children.close()
        self._fleet.close()

    def _tell_journal(self) -> None:
        problem = self._journal.problem
        if problem is not None and problem != self._told_problem:
            self._view.event(f"{problem}; state.json and events.jsonl lag behind")
        self._told_problem = problem

    @property
    def _max_steps(self) -> int:
        return self._plan.configs.orchestrator.max_steps

    def _show(self) -> None:
        self._view.show(
            Snapshot(
                name=self._plan.name,
                phase=self._journal.phase,
                reason=self._journal.reason,
                attempt=self._fleet.identity.attempt,
                max_steps=self._max_steps,
                elapsed_s=time.monotonic() - self._progress.begun,
                restarts=dict(self._journal.restarts),
                state=self._progress.state,
            )
        )
