"""Random spec changes on living runs: each converges or is refused, and none harms a gang without saying so.

What a change may do is the table of effects (``api.mutability``); what it did is judged from the history of the run's
objects and from the children that are there.
"""

import asyncio
import copy
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from echorl_core.names import ExitCode
from echorl_manifest.mutability import Effect, effect_of_change
from echorl_manifest.validation import parsed
from echorl_operator import names
from echorl_operator.children.assembly import cluster_problems, common, inference_deployment, render, trainer_set
from echorl_operator.names import PodRole
from echorl_operator.plan.drift import needs_apply
from echorl_testing.cluster.api import ApiError
from echorl_testing.manifests.spec_changes import Spec, SpecChange, SpecChanges
from echorl_testing.operator.gang_oracle import attempt_of, is_admitted
from echorl_testing.operator.operator_world import SETTINGS, SPEC
from echorl_testing.operator.run_life import PATIENCE_S, Field

A_LIFE = 8
"""Changes of one run; then another one is made, whose events are its own."""
_CREATED_ONLY = ("PersistentVolumeClaim", "Secret")


@dataclass
class Tally:
    """What came of all changes."""

    outcomes: Counter[str] = field(default_factory=Counter)
    touched: set[str] = field(default_factory=set)
    """Paths of the schema that were changed."""
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Changes so far."""
        return self.outcomes.total()


@dataclass(frozen=True)
class _Before:
    attempt: int
    gang: frozenset[str]
    running: bool
    generation: int


async def transitions(world: Field, count: int, *, seed: int, at_once: int, a_life: int = A_LIFE) -> Tally:
    """Make so many changes, ``a_life`` on each run, of which ``at_once`` live at the same time."""
    tally, turn = Tally(), asyncio.Semaphore(at_once)

    async def one(number: int, changes: int) -> None:
        async with turn:
            source = SpecChanges(f"{seed}-{number}", SETTINGS)
            try:
                await _Walk(world, source, tally).go(changes)
            except AssertionError as error:
                tally.problems.append(f"seed {seed}, life {number}: {error}")

    numbers = range(0, count, a_life)
    await asyncio.gather(*(one(number, min(a_life, count - number)) for number in numbers))
    return tally


class _Walk:
    """One run and its changes."""

    def __init__(self, world: Field, source: SpecChanges, tally: Tally) -> None:
        self._world, self._source, self._tally = world, source, tally
        self._spec: Spec = copy.deepcopy(SPEC)

    async def go(self, changes: int) -> None:
        """Live, and change so often."""
        async with self._world.life() as life, life.operated():
            self._life = life
            await life.create()
            await self._runs(1)
            for _ in range(changes):
                change = self._source.change(self._spec)
                try:
                    outcome = await self._make(change)
                except AssertionError as error:
                    differs = f"{change.pattern}: {_differs(change)}"
                    raise AssertionError(f"{differs}\n{error}") from None
                self._tally.outcomes[outcome] += 1
                self._tally.touched.add(change.pattern)
            assert life.problems() == [], life.problems()
            await self._told_of_every_restart()

    async def _make(self, change: SpecChange) -> str:
        """One change, in a word what came of it."""
        before, effect = self._before(), effect_of_change(change.before, change.after)[0]
        try:
            replaced = await self._replace(change.after)
        except ApiError as error:
            return await self._refused(change, effect, before, error)
        assert effect is not Effect.IMMUTABLE, "the API server takes what cannot change"
        generation = replaced["metadata"]["generation"]
        if not change.valid:
            return await self._told(change, before, generation)
        self._spec = change.after
        if change.after.get("suspend") is True:
            return await self._suspended(before, generation)
        if not before.running:
            await self._converged(generation, before.attempt + 1)
            return "resumed"
        if effect is Effect.NEW_ATTEMPT:
            await self._converged(generation, before.attempt + 1)
            assert not before.gang & self._before().gang, "pods of the attempt before are still there"
            return "a new attempt"
        await self._converged(generation, before.attempt)
        assert self._before().gang == before.gang, f"the gang was touched by a change whose effect is {effect.name}"
        return "applied live" if effect is Effect.LIVE else "no change"

    async def _refused(self, change: SpecChange, effect: Effect, before: _Before, error: ApiError) -> str:
        assert error.code in (400, 422), error
        assert effect is Effect.IMMUTABLE or not change.valid, f"refused though it is right: {error}"
        named = [cause.get("field", "") for cause in error.status.get("details", {}).get("causes", [])]
        assert any(one.startswith("spec") for one in named), f"the refusal names no field: {error}"
        assert self._before() == before
        return "refused by the API server"

    async def _told(self, change: SpecChange, before: _Before, generation: int) -> str:
        """Only the operator can refuse it: it names the field, leaves the run as it is, and heals when it is undone."""
        paths = [problem.path for problem in _problems(change.after)]

        def told() -> bool:
            condition = self._life.condition("InvalidSpec")
            current = condition.get("observedGeneration", 0) >= generation
            named = any(path in condition.get("message", "") for path in paths)
            return bool(current and condition["status"] == "True" and named)

        await self._life.until(f"the operator names one of {paths}", told)
        now = self._before()
        same = (now.attempt, now.gang, now.running) == (before.attempt, before.gang, before.running)
        assert same, "a manifest that cannot be carried out has touched the run"
        replaced = await self._replace(self._spec)
        generation = replaced["metadata"]["generation"]
        await self._life.until("that is over", lambda: self._life.condition("InvalidSpec")["status"] == "False")
        if before.running:
            await self._converged(generation, before.attempt)
            assert self._before().gang == before.gang
        return "refused by the operator"

    async def _suspended(self, before: _Before, generation: int) -> str:
        life = self._life
        if before.running:
            played = life.cluster.orchestrators["one"]
            await life.until("the orchestrator is asked to stop", lambda: played.asked_to_stop)
            await life.cluster.end("one-orchestrator", int(ExitCode.STOPPED))
        await life.until(
            "it is suspended", lambda: life.status()["phase"] == "Suspended" and self._seen() >= generation
        )
        roles = [role for role in PodRole if role is not PodRole.PREPARE]
        # Pods come by another watch than the run.
        await life.until("a suspended run has no pods", lambda: not any(life.pods(role) for role in roles))
        return "suspended" if before.running else "changed while suspended"

    async def _runs(self, attempt: int) -> None:
        wanted = (self._spec.get("trainer") or {}).get("replicas", 1)

        def whole() -> bool:
            status = self._life.status()
            through = [
                pod
                for pod in self._life.pods(PodRole.TRAINER)
                if is_admitted(pod) and attempt_of(pod) == attempt and "deletionTimestamp" not in pod["metadata"]
            ]
            return (status.get("phase"), status.get("attempt"), len(through)) == ("Running", attempt, wanted)

        await self._life.until(f"attempt {attempt} runs with {wanted} trainer pods", whole, PATIENCE_S)

    async def _converged(self, generation: int, attempt: int) -> None:
        """Every child is as the newest manifest says, and the gang runs."""
        await self._runs(attempt)
        await self._life.until("the change is seen", lambda: self._seen() >= generation)
        run = self._life.history.get(self._life.namespace, names.KIND, "one")
        assert run is not None
        desired = self._desired(run, attempt)

        def lacking() -> list[str]:
            return [f"{body['kind']} {body['metadata']['name']}" for body in desired if self._differs(body)]

        def engines() -> bool:
            living = [one for one in self._life.pods(PodRole.INFERENCE) if "deletionTimestamp" not in one["metadata"]]
            return bool(len(living) == (self._spec.get("inference") or {}).get("replicas", 1))

        try:
            await self._life.until("children are as the manifest says", lambda: not lacking() and engines())
        except AssertionError as error:
            raise AssertionError(f"{error}\ndiffer: {lacking()}") from None

    def _desired(self, run: dict[str, Any], attempt: int) -> list[dict[str, Any]]:
        document = {key: run[key] for key in ("apiVersion", "kind", "metadata", "spec")}
        parsed_run, problems = parsed(document)
        assert parsed_run is not None, problems
        metadata = run["metadata"]
        rendering = render(
            parsed_run,
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            generation=metadata["generation"],
            settings=SETTINGS,
        )
        spec = parsed_run.spec
        return [
            *(body for body in common(rendering) if body["kind"] not in _CREATED_ONLY),
            trainer_set(rendering, attempt, spec.trainer.replicas),
            inference_deployment(rendering, spec.inference.replicas),
        ]

    def _differs(self, body: dict[str, Any]) -> bool:
        live = self._life.history.get(self._life.namespace, body["kind"], body["metadata"]["name"])
        return live is None or needs_apply(body, live)

    def _seen(self) -> int:
        """Generation of the run that the newest status was written for."""
        conditions = self._life.status().get("conditions", [])
        return max((one.get("observedGeneration", 0) for one in conditions), default=0)

    def _before(self) -> _Before:
        run = self._life.history.get(self._life.namespace, names.KIND, "one")
        assert run is not None
        status = run.get("status", {})
        gang = [pod for pod in self._life.pods(PodRole.TRAINER) if is_admitted(pod)]
        return _Before(
            status.get("attempt", 0),
            frozenset(pod["metadata"]["uid"] for pod in gang),
            status.get("phase") == "Running",
            run["metadata"]["generation"],
        )

    async def _replace(self, spec: Spec) -> dict[str, Any]:
        def edited(run: dict[str, Any]) -> dict[str, Any]:
            run["metadata"].pop("managedFields", None)
            return {**run, "spec": spec}

        path, strict = f"{self._life.runs}/one", {"fieldValidation": "Strict"}
        replaced: dict[str, Any] = await self._life.api.replace(path, edited, query=strict)
        return replaced

    async def _told_of_every_restart(self) -> None:
        """Each attempt after the first has an event that says why it began."""
        attempts = range(2, self._life.status()["attempt"] + 1)

        def told() -> bool:
            notes = self._life.notes()
            return all(any(f": attempt {number}: " in one for one in notes) for number in attempts)

        await self._life.until(f"it is told why each of the attempts {[*attempts]} began", told)


def _problems(spec: Spec) -> list[Any]:
    document = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": "one"},
        "spec": spec,
    }
    run, problems = parsed(document)
    return problems if run is None else [*problems, *cluster_problems(run, SETTINGS)]


def _differs(change: SpecChange) -> str:
    keys = sorted(change.before.keys() | change.after.keys())
    shown = {
        key: [change.before.get(key), change.after.get(key)]
        for key in keys
        if change.before.get(key) != change.after.get(key)
    }
    return json.dumps(shown)
