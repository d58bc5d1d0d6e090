"""Which engine a request goes to: an episode sticks to one, and nothing passes while no engine may serve."""

from collections.abc import Callable

from echorl_orchestrator.engines.calls import Calls, CallsGivenUpError
from echorl_orchestrator.engines.changes import Changes
from echorl_orchestrator.engines.engine import COUNTED, Engine, EngineState
from echorl_orchestrator.failures import EpisodeError, ErrorKind


class Placement:
    """Chooses among the engines of a pool; waits ``patience_s`` seconds for one that may serve."""

    def __init__(self, engines: Callable[[], list[Engine]], changes: Changes, patience_s: float) -> None:
        self._engines = engines
        self._changes = changes
        self._patience_s = patience_s
        self._episodes: dict[str, Engine] = {}

    async def of_episode(self, episode: str) -> Engine:
        """The engine that the episode sticks to; a new one if its own cannot serve any more."""
        return await self._wait(lambda: self._of_episode(episode))

    async def anywhere(self) -> Engine:
        """The engine with the least to do."""
        return await self._wait(self._least_loaded)

    async def leave(self, episode: str, engine: Engine, seconds: float) -> None:
        """Let the episode stick to another engine, if one serves within ``seconds`` or before ``engine`` is gone."""
        if self._episodes.get(episode) is not engine:
            return  # another turn of it has left already

        def look() -> bool | None:
            other = self._least_loaded(besides=engine)
            if other is not None:
                self.release(episode)
                self._pin(episode, other)
                return True
            return None if engine.state in COUNTED else False

        try:
            await self._changes.until(look, seconds)
        except TimeoutError:
            return

    async def settled(self, engine: Engine, calls: Calls) -> None:
        """Wait until it is known whether the weights that the engine was given are right.

        Raises:
            CallsGivenUpError: they are not, or the engine is lost.
            EpisodeError: PROVIDER when that is not known in time.
        """

        def settled() -> bool | None:
            return True if calls.reason is not None or engine.state is not EngineState.UPDATING else None

        try:
            await self._changes.until(settled, self._patience_s * 2)
        except TimeoutError as error:
            message = f"engine {engine.address} is still updating after {self._patience_s * 2} s"
            raise EpisodeError(ErrorKind.PROVIDER, message) from error
        if calls.reason is not None:
            raise CallsGivenUpError(calls.reason)

    def release(self, episode: str) -> None:
        """Forget which engine an episode sticks to."""
        engine = self._episodes.pop(episode, None)
        if engine is not None:
            engine.pinned -= 1

    def _of_episode(self, episode: str) -> Engine | None:
        engine = self._episodes.get(episode)
        if engine is not None and engine.state in COUNTED:
            return engine if engine.state is EngineState.SERVING else None
        chosen = self._least_loaded()
        if chosen is not None:
            self.release(episode)
            self._pin(episode, chosen)
        return chosen

    def _pin(self, episode: str, engine: Engine) -> None:
        self._episodes[episode] = engine
        engine.pinned += 1

    def _least_loaded(self, besides: Engine | None = None) -> Engine | None:
        serving = [one for one in self._engines() if one.state is EngineState.SERVING and one is not besides]
        return min(serving, key=lambda engine: (engine.in_flight, engine.pinned, engine.address), default=None)

    async def _wait(self, look: Callable[[], Engine | None]) -> Engine:
        try:
            return await self._changes.until(look, self._patience_s)
        except TimeoutError as error:
            states = ", ".join(f"{engine.address} {engine.state}" for engine in self._engines()) or "none known"
            message = f"no engine may serve for {self._patience_s} s; engines: {states}"
            raise EpisodeError(ErrorKind.PROVIDER, message) from error
