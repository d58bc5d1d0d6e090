"""Sums of ``verifiers.v1`` with a harness of their own: a program that asks twice. Tasks need what they are told to."""

import sys

import verifiers.v1 as vf

__all__ = ["OwnHarness", "OwnSums"]

PROGRAM = """
import json, os, sys, urllib.request
messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(2):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
open("said", "w").write(said)
sys.exit(3 if "fail" in sys.argv[1] else 0)
"""


class OwnHarness(vf.Harness[vf.HarnessConfig]):
    """See the module."""

    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        """Run the program."""
        variables = {"OPENAI_BASE_URL": endpoint, "OPENAI_API_KEY": secret, "MODEL": ctx.model}
        return await runtime.run_program([sys.executable, "-c", PROGRAM, data.prompt], variables)


class OwnData(vf.TaskData):
    """A row."""

    answer: str


class OwnSum(vf.Task[OwnData]):
    """See the module."""

    async def finalize(self, trace, runtime):
        """Look at what the program has left behind."""
        said = (await runtime.read("said")).decode()
        trace.record_reward("right", float(said == self.data.answer))


class OwnConfig(vf.TasksetConfig):
    """What tasks need."""

    image: str | None = None
    network_allow: list[str] = ["*"]


class OwnSums(vf.Taskset[OwnSum, OwnConfig]):
    """See the module."""

    def load(self):
        """Two of them; the second one's program fails."""
        needs = {"image": self.config.image, "network_allow": self.config.network_allow}
        for index, word in enumerate(("Guess.", "Guess, and fail.")):
            yield OwnSum(OwnData(idx=index, prompt=f"{word} 1 + {index}?", answer=str(1 + index), **needs))
