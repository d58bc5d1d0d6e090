"""``echorl view`` as a user has it: the command, and a real browser that looks at its pages."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By

from benchmarks.view.run_folder import RunWriter, Shape
from echorl_testing import browser as browsers
from echorl_testing.view_folder import failed, lines

pytestmark = pytest.mark.skipif(bool(browsers.missing()), reason=browsers.missing() or "-")

DEADLINE_S = 90.0
STEPS = 3


def until(found, what):
    """What ``found`` returns, once it is something."""
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        try:
            if value := found():
                return value
        except StaleElementReferenceException:
            pass  # the page was being changed
        time.sleep(0.05)
    raise TimeoutError(what)


@contextmanager
def served(*arguments, cwd):
    command = [sys.executable, "-m", "echorl_cli", "view", *map(str, arguments)]
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        told = process.stdout.readline()
        address = re.search(r"http://\S+", told)
        assert address, told + process.stdout.read()
        yield process, address[0]
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=DEADLINE_S)[0]
    assert (process.returncode, rest.strip()) == (0, "")


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    made = RunWriter(tmp_path_factory.mktemp("view") / "mending", "mending", 1, Shape(STEPS, 8, tokens=True))
    made.write()
    return made


@pytest.fixture(scope="module")
def place(writer, tmp_path_factory):
    with served(writer.run.root, "--port", "0", cwd=tmp_path_factory.mktemp("elsewhere")) as (_, address):
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def page(chromium, place):
    class Page:
        def open(self, path=""):
            chromium.get(place + path)

        def all(self, selector):
            return chromium.find_elements(By.CSS_SELECTOR, selector)

        def text(self):
            # In one call: between two of them a click may have brought another page.
            return chromium.execute_script("return document.body ? document.body.innerText : ''")

        def see(self, text):
            until(lambda: text in self.text(), f"{text!r} on {self.text()!r}")

        def click(self, selector, text):
            until(lambda: self._clicked(selector, text), text)

        def _clicked(self, selector, text):
            try:
                found = next((one for one in self.all(selector) if text in one.text), None)
                if found is not None:
                    found.click()
            except StaleElementReferenceException:
                return False  # the table was drawn anew meanwhile
            return found is not None

    yield Page()
    assert browsers.hosts_asked(chromium) == {place.removeprefix("http://").rstrip("/")}
    assert browsers.complaints(chromium) == []


def test_a_run_as_curves(page):
    page.open()
    page.see("mending")
    page.see("step 3")
    page.see("24 episodes")
    until(lambda: len(page.all(".chart canvas, .chart svg")) >= 6, "charts")


def test_a_filter_and_an_episode_with_two_branches(page, chromium):
    page.open("episodes?environment=search")
    page.see("12 episodes")
    page.open("episodes")
    page.see("24 episodes")
    field = chromium.find_element(By.CSS_SELECTOR, ".search input")
    # Story 1 of three has a second branch: 8 episodes a step, so in step 2 that of number 16.
    field.send_keys("a1-g000016-e0")
    page.see("1 episode ")
    page.click(".ag-cell", "a1-g000016-e0")
    page.see("branch 1 · sideCall")
    page.see("Tools: read(path)")
    page.click(".branches .q-tab", "branch 1")
    page.see("A title of at most five words")


def test_tokens_in_the_colours_of_their_training(page):
    page.open("episode?kind=train&attempt=1&step=2&episode=a1-g000016-e0")
    page.click(".q-tab", "Tokens (1)")
    page.see("with an ECHO weight")
    spans = until(lambda: page.all(".tokens span"), "tokens")
    by_text = {span.text.strip(): span for span in spans}
    assert by_text["changed"].value_of_css_property("text-decoration-line") == "underline"
    assert by_text["changed"].get_attribute("title").split("; ")[1] == "env_output, echo 0.05"
    advantage = float(re.search(r"advantage ([+-][\d.]+)", by_text["first."].get_attribute("title"))[1])
    green = "rgba(21, 128, 61, 1)"
    assert (by_text["first."].value_of_css_property("color") == green) == (advantage > 0)
    page.click(".q-btn", "ratio")
    page.see("ratio 2 and more")
    until(lambda: any("rgba" in (one.get_attribute("style") or "") for one in page.all(".tokens span")), "shades")


def test_time_and_what_the_environment_left(page):
    page.open("episode?kind=train&attempt=1&step=2&episode=a1-g000016-e0")
    page.click(".q-tab", "Time")
    until(lambda: page.all(".lanes canvas, .lanes svg"), "lanes")
    page.click(".q-tab", "Info (3)")
    page.see("sandbox ready after 0.31 s")
    assert next(one.text.strip() for one in page.all(".diff .added")).startswith("+    return sum(items)")


def test_a_batch_and_an_address_of_nothing(page):
    page.open("batch?step=2")
    page.see("of 3 · 8 episodes to look at, 0 filtered before, 0 failed")
    page.open("episode?kind=train&attempt=1&step=9&episode=nobody")
    page.see("has no record of nobody")


def test_a_new_step_arrives_live(page, writer):
    page.open("batch")
    page.see("the newest, live · 8 episodes")
    assert page.all(".by-step input")[0].get_attribute("value") == str(STEPS)
    writer.step(STEPS + 1)
    until(lambda: page.all(".by-step input")[0].get_attribute("value") == str(STEPS + 1), "the new step")
    page.open()
    page.see(f"step {STEPS + 1}")
    writer.step(STEPS + 2)
    page.see(f"step {STEPS + 2}")


def test_a_failed_episode_is_found_by_its_class_and_says_why(page, writer):
    lost = failed("a1-g000777-e0", 77, "harness", "harness", "calc-1: setup: ended with 9")
    lines(writer.run.records(1) / "episodes.jsonl", lost)
    page.open("episodes?error_class=harness")
    page.see("1 episode")
    page.click(".ag-cell", "a1-g000777-e0")
    page.see("harness: calc-1: setup: ended with 9")
    page.see("no: it failed")
    page.open("batch?step=77")
    page.see("0 episodes to look at, 0 filtered before, 1 failed")


def test_beyond_this_machine_a_token_is_needed(writer, tmp_path, chromium):
    with served(writer.run.root, "--port", "0", "--host", "0.0.0.0", cwd=tmp_path) as (_, address):
        port = re.search(r":(\d+)/", address)[1]
        token = address.partition("?")[2]
        with pytest.raises(OSError, match="401"):
            urlopen(f"http://127.0.0.1:{port}/")
        chromium.get(f"http://127.0.0.1:{port}/?{token}")
        until(lambda: "mending" in chromium.find_element(By.TAG_NAME, "body").text, "the page")
        assert "token" not in chromium.current_url
    assert list(tmp_path.iterdir()) == []
