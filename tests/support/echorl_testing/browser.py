"""A real browser without a window, for tests of pages; whatever it starts ends with it."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_PROGRAMS = ("chromium", "chromedriver")
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1360,900",
)


def missing() -> str:
    """Why no browser can be started here; empty if one can."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (make test-programs, as root)" if absent else ""


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Chromium with an empty profile, which keeps a log of what it asks for."""
    program, driver = (shutil.which(name) for name in _PROGRAMS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(program)
        for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield browser
        finally:
            browser.quit()


def hosts_asked(browser: webdriver.Chrome) -> set[str]:
    """Hosts that pages have asked for anything since the last call: by HTTP or by WebSocket."""
    found = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        asked = message["params"].get("request", message["params"]).get("url", "")
        if message["method"] in {"Network.requestWillBeSent", "Network.webSocketCreated"}:
            parts = urlsplit(asked)
            if parts.scheme in {"http", "https", "ws", "wss"}:
                found.add(parts.netloc)
    return found


def complaints(browser: webdriver.Chrome) -> list[str]:
    """What the browser's console says is wrong since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
