"""Run by an interpreter that has OpenEnv: ``openenv_server.py PORT``. Small environments of that library, by name.

game      guess a number from 0 to 9: 0.25 for each step, 1.0 more when it is found; three guesses
silent    the same, and never a reward
broken    its step raises
single    the game, for one session at a time
split     the game with tasks of its own: the train split's numbers are 5 and 6, the test split's is 8
"""

import sys

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """Guess the number."""

    number: int
    why: str = ""


class Said(Action):
    """Say something."""

    word: str


class Seen(Observation):
    """What a player sees."""

    text: str
    left: int


class Game(Environment):
    """See the module."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    rewarded = True

    def __init__(self):
        """Nothing is asked yet."""
        super().__init__()
        self._state, self._number, self._left = State(), 0, 3

    def reset(self, seed=None, episode_id=None, top=9, **_):
        """Choose the number that the seed says."""
        self._state, self._number, self._left = State(episode_id=episode_id), (seed or 0) % (top + 1), 3
        return Seen(text=f"a number from 0 to {top}", left=self._left)

    def step(self, action, **_):
        """Compare."""
        guess = action.number if isinstance(action, Guess) else int(action.word)
        self._state.step_count += 1
        self._left -= 1
        right = guess == self._number
        text = "right" if right else "more" if guess < self._number else "less"
        reward = 0.25 + right if self.rewarded else None
        return Seen(text=text, left=self._left, done=right or self._left == 0, reward=reward)

    @property
    def state(self):
        """How far it is."""
        return self._state


class Split(Game):
    """See the module."""

    numbers = {"train": [5, 6], "test": [8], "empty": []}

    def list_splits(self):
        """Names of the splits."""
        return [*self.numbers]

    def num_tasks(self, split):
        """How many there are."""
        return len(self.numbers[split])

    def reset(self, seed=None, episode_id=None, split="train", index=0, **_):
        """Choose the task's number; the seed only says how it is told."""
        super().reset(self.numbers[split][index], episode_id)
        return Seen(text=f"{split} {index}, told by {seed}", left=self._left)


class Silent(Game):
    """See the module."""

    rewarded = False


class Broken(Game):
    """See the module."""

    def step(self, action, **_):
        """Fail."""
        raise RuntimeError("the board fell down")


if __name__ == "__main__":
    whole = FastAPI()
    whole.mount("/game", create_fastapi_app(Game, Guess, Seen, max_concurrent_envs=16))
    whole.mount("/words", create_fastapi_app(Game, Said, Seen, max_concurrent_envs=16))
    whole.mount("/silent", create_fastapi_app(Silent, Guess, Seen, max_concurrent_envs=16))
    whole.mount("/broken", create_fastapi_app(Broken, Guess, Seen, max_concurrent_envs=16))
    split = create_fastapi_app(Split, Guess, Seen, max_concurrent_envs=16, env_name="guess a number")
    whole.mount("/split", split)
    whole.mount("/single", create_fastapi_app(Game, Guess, Seen, max_concurrent_envs=1))
    uvicorn.run(whole, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
