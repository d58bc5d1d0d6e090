"""From a lost process to the next useful step, on one machine: an engine, the orchestrator, a rank's process.

    make setup && PYTHONPATH=tests/support .venv/bin/python -m benchmarks.recovery --out DIR

Real: ``echorl run`` with a trainer of two ranks, a small seeded model, and vLLM on the CPU. Processes are ended by
SIGKILL at random moments, the next one when the run is back. Two runs: with ``checkpoint.memory`` lose an engine, the
orchestrator, a rank (``rank``, which goes on in place) and both at once (``rank-orchestrator``); without it a rank
(``rank-volume``, which begins anew at the volume's checkpoint). No loss begins after ``--minutes``; what that leaves is
in the count.

By what was lost, p50 and p99 (nearest rank):

- ``next_s``: from SIGKILL to the first step that had not been made before.
- ``back_s``: to the first one after the lost process's successor is at work; an engine's: after it serves again.
- ``cpu_s``: processor time of the successor until then, which a busy machine leaves as it is.
- ``redone``: how many steps were made again.
- of an engine ``again``: tokens that were sampled and must be sampled again, and ``again_s``: what the run samples
  undisturbed in so many seconds. Sampled: vLLM's counters, read just before the kill; received and kept: ours.

A line of JSON a loss in ``DIR/recovery.jsonl``.
"""

import argparse
import json
import math
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_testing.local import history
from echorl_testing.local.local_run import LocalRun, local_run, manifest, write_model
from echorl_testing.scrape import asked

START_S, LOST_S = 400.0, 300.0
RANKS, INTERVAL = 2, 5
VICTIMS = {
    "engine": "inference-",
    "orchestrator": "orchestrator-",
    "rank": "trainer-",
    "rank-orchestrator": "trainer-",
    "rank-volume": "trainer-",
}
"""By what is lost: how the names of its processes begin, of both: the rank's."""
GENERATED, FINISHED = "vllm:generation_tokens_total", "vllm:request_generation_tokens_sum"
KEPT, ABANDONED = "echorl_orchestrator_turn_tokens_kept_total", "echorl_orchestrator_turn_tokens_lost_total"


def total(text: str, family: str, label: str = "") -> float:
    """The sum of a family's series in Prometheus' text that have ``label`` (``name="value"``)."""
    series = re.findall(rf"^{re.escape(family)}(?:\{{([^}}]*)\}})? (\S+)", text, re.MULTILINE)
    return sum(float(value) for labels, value in series if label in labels)


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that so many are not above; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass
class Tokens:
    """Of one engine and of the orchestrator, at a moment."""

    at: float
    generated: float
    open: float
    """Sampled for requests that have not ended."""
    kept: float
    """Received of streams that broke off, and not given up afterwards."""


class Losses:
    """A run, and what it loses."""

    def __init__(self, run: LocalRun, chance: random.Random) -> None:
        self._run, self._chance = run, chance

    def lose(self, what: str) -> dict[str, Any]:
        """One process at a random moment, and wait until the run is back; a row."""
        run = self._run
        victim = self._chance.choice(sorted(name for name in run.roles() if name.startswith(VICTIMS[what])))
        engine = self._address(victim) if what == "engine" else ""
        began, step, before = time.monotonic(), run.step(), self._tokens(engine)
        run.until_step(step + 2, LOST_S)
        a_step = (time.monotonic() - began) / (run.step() - step)
        # Not a wait for something: what is disturbed is a matter of chance.
        time.sleep(self._chance.uniform(0.0, 2 * a_step))
        pid, state, at_kill = run.roles()[victim], run.orchestrator_state(), self._tokens(engine)
        os.kill(pid, signal.SIGKILL)
        if what == "rank-orchestrator":
            os.kill(run.roles()["orchestrator-0"], signal.SIGKILL)
        killed, step = time.monotonic(), int(state["step"])
        boots = {one["boot_id"] for one in state["engines"] if one["name"] == engine}
        row = {"lost": what, "process": victim, "step": step, "step_s": round(a_step, 3)}
        row |= self._back(victim, pid, step, killed, boots)
        if engine:
            again = max(0.0, at_kill.open - (self._tokens(engine).kept - at_kill.kept))
            rate = (at_kill.generated - before.generated) / (at_kill.at - before.at)
            row |= {"again": round(again), "again_s": round(again / rate, 3), "tokens_per_s": round(rate)}
        return row

    def _back(self, victim: str, pid: int, step: int, killed: float, boots: set[str]) -> dict[str, Any]:
        run, found, attempt = self._run, dict[str, Any](), self._run.directory.last_attempt()
        at_work: list[int] = []
        """The step when the successor was found at work."""

        def is_back() -> bool:
            state = run.orchestrator_state()
            reached, now = int(state.get("step") or 0), round(time.monotonic() - killed, 2)
            if reached > step:
                found.setdefault("next_s", now)
            if at_work and reached > at_work[0]:
                found.update(back_s=now, cpu_s=round(self._cpu_s(run.roles()[victim]), 2))
            elif not at_work and run.roles().get(victim, pid) != pid and self._serve(state, boots):
                at_work.append(max(step, reached))
                found["successor_s"] = now
            return "back_s" in found

        run.until(is_back, f"a step after {victim} was lost", LOST_S)
        again = history.redone(run.directory) if run.directory.last_attempt() > attempt else {}
        return found | {"redone": sum(steps for number, steps in again.items() if number > attempt)}

    def _cpu_s(self, leader: int) -> float:
        """Of the processes of a session, those included that have ended."""
        ticks = 0
        for stat in self._run.processes():
            if stat.session == leader:
                fields = Path(f"/proc/{stat.pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _serve(state: Mapping[str, Any], boots: set[str]) -> bool:
        """Whether all engines do, none of which is one of these starts."""
        engines = state.get("engines") or []
        serve = all(one["state"] in {"serving", "updating"} and one["boot_id"] not in boots for one in engines)
        return bool(engines) and serve

    def _address(self, name: str) -> str:
        configs = self._run.directory.attempt(self._run.directory.last_attempt()) / "configs"
        return f"127.0.0.1:{json.loads((configs / f'{name}.json').read_text())['port']}"

    def _tokens(self, engine: str) -> Tokens:
        """Now; the engine's last. Nothing without an engine."""
        if not engine:
            return Tokens(time.monotonic(), 0.0, 0.0, 0.0)
        ours, engines = (
            asked(int(address.rpartition(":")[2]), "/metrics")[1] for address in (self._address("orchestrator"), engine)
        )
        kept = total(ours, KEPT) - total(ours, ABANDONED, 'cause="abandoned"')
        generated = total(engines, GENERATED)
        return Tokens(time.monotonic(), generated, generated - total(engines, FINISHED), kept)


def document(model: Path, *, memory: bool, engines: int, tokens: int) -> dict[str, Any]:
    """The run: turns of up to ``tokens`` tokens, of which vLLM streams 64 at a time."""
    checkpoint = {"interval": INTERVAL, "keepLast": 3} | ({"memory": {"limit": "1Gi"}} if memory else {})
    made = manifest(
        model,
        maxSteps=1_000_000,
        checkpoint=checkpoint,
        inference={"replicas": engines, "gpusPerReplica": 0, "tensorParallel": 1},
        failurePolicy={"maxRestarts": 1000, "backoffSeconds": 0},
    )
    made["spec"]["trainer"] |= {"replicas": RANKS, "optimizer": {"type": "adamw", "lr": 1e-3}}
    made["spec"]["environments"]["train"][0]["sampling"]["maxCompletionTokens"] = tokens
    return made


def lived(
    folder: Path, made: Mapping[str, Any], plan: Sequence[str], seed: int, until: float
) -> Iterator[dict[str, Any]]:
    """Rows of a run that loses what ``plan`` says, in that order, until the clock says ``until``."""
    with local_run(folder, made) as run:
        run.start().until_step(INTERVAL + 1, START_S)
        # A rank that is lost before the first checkpoint would begin from nothing.
        run.until(lambda: history.committed_steps(run.directory), "a checkpoint", START_S)
        losses = Losses(run, random.Random(seed))
        for what in plan:
            if time.monotonic() > until:
                break
            yield losses.lose(what)
        run.interrupt()
        run.ended(LOST_S)
        run.assert_nothing_left()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As Markdown."""
    lines = ["| lost | count | next step, p50, p99 | back, p50, p99 | CPU | a step | redone |", "|" + "---|" * 7]
    for what in VICTIMS:
        if mine := [row for row in rows if row["lost"] == what]:
            spread = [both(mine, key, ".1f") for key in ("next_s", "back_s")]
            cpu_s, step_s = (quantile((row[key] for row in mine), 0.5) for key in ("cpu_s", "step_s"))
            redone = sum(row["redone"] for row in mine) / len(mine)
            times = f"{spread[0]} s | {spread[1]} s | {cpu_s:.1f} s | {step_s:.1f} s"
            lines.append(f"| {what} | {len(mine)} | {times} | {redone:.1f} |")
    if engines := [row for row in rows if row["lost"] == "engine"]:
        tokens, seconds = both(engines, "again", ".0f"), both(engines, "again_s", ".2f")
        lines += ["", f"Sampled again for an engine, p50, p99: {tokens} tokens; {seconds} s of the run's sampling."]
    return "\n".join(lines)


def both(rows: Iterable[Mapping[str, Any]], key: str, form: str) -> str:
    """p50 and p99."""
    values = [row[key] for row in rows]
    return ", ".join(format(quantile(values, share), form) for share in (0.5, 0.99))


def load() -> str:
    """Of the machine, over 1, 5 and 15 minutes."""
    return "load " + " ".join(f"{one:.1f}" for one in os.getloadavg())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--losses", type=int, default=10, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=[*VICTIMS], default=[*VICTIMS])
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no loss begins")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96, help="of a turn, at most")
    parser.add_argument("--seed", type=int, default=0, help="of when and what is lost")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Lose what is asked for, and tell what that took."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process of the run is left
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell puts into the background ignores it
    options.out.mkdir(parents=True, exist_ok=True)
    model, began, rows, share = write_model(options.out / "model"), time.monotonic(), list[dict[str, Any]](), 0.0
    print(f"seed {options.seed}, {os.cpu_count()} cores, {load()}", flush=True)
    for memory in (True, False):
        kinds = [kind for kind in options.kinds if (kind != "rank-volume") is memory]
        if not kinds:
            continue
        share += len(kinds) / len(options.kinds)
        chance = random.Random(options.seed)
        plan = [kind for _ in range(options.losses) for kind in chance.sample(kinds, len(kinds))]
        made = document(model, memory=memory, engines=options.engines, tokens=options.tokens)
        until = began + 60 * options.minutes * share
        for row in lived(options.out / ("memory" if memory else "volume"), made, plan, options.seed, until):
            rows.append(row)
            print(json.dumps(row), flush=True)
            with (options.out / "recovery.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(f"{load()}, {time.monotonic() - began:.0f} s\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
