"""Headless Chromium, driven over chromedriver's HTTP interface (W3C WebDriver): no library, no download."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from activity_platform.local.server import HOST, accepts_connections, free_port

START_SECONDS = 30
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.25
SIZE = (1280, 860)

#: Root has no sandbox; nothing but this machine is to be looked up or called.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",
    f"--window-size={SIZE[0]},{SIZE[1]}",
)


def missing() -> str | None:
    """Which program is not installed; None when both are."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not installed" if lacking else None


@dataclass(frozen=True)
class Trouble:
    """What went wrong in a page: a request that failed, or an error on its console."""

    kind: str
    url: str
    what: str


@dataclass(frozen=True)
class Browser:
    """One window."""

    session_url: str

    def open(self, url: str) -> None:
        """Returns when the page is loaded; its own requests may go on."""
        self._post("url", {"url": url})

    def text(self) -> str:
        """Everything that can be read in the page, as it is laid out."""
        return str(self.run("return document.body.innerText"))

    def wait_for(self, *texts: str) -> str:
        """The page's text once it holds all of them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while lacking := [one for one in texts if one not in self.text()]:
            assert time.monotonic() < deadline, f"{lacking} is not in the page:\n{self.text()}"
            time.sleep(POLL_SECONDS)
        return self.text()

    def wait_until(self, script: str) -> None:
        """Returns once the function body `script` returns true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.run(script):
            assert time.monotonic() < deadline, f"{script}: not in this page:\n{self.text()}"
            time.sleep(POLL_SECONDS)

    def run(self, script: str, *arguments: Any) -> Any:
        """What the function body `script` returns."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def click(self, xpath: str) -> None:
        """Clicks the first such element, once it is there."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self._find(xpath)):
            assert time.monotonic() < deadline, f"{xpath} is not in the page:\n{self.text()}"
            time.sleep(POLL_SECONDS)
        self._post(f"element/{found[0]}/click", {})

    def _find(self, xpath: str) -> list[str]:
        found = self._post("elements", {"using": "xpath", "value": xpath})
        return [next(iter(one.values())) for one in found]

    def resize(self, width: int, height: int) -> None:
        """The window, its invisible frame included."""
        self._post("window/rect", {"width": width, "height": height})

    def screenshot(self) -> bytes:
        """The window as WebP, a third of what PNG takes."""
        command = {"cmd": "Page.captureScreenshot", "params": {"format": "webp", "quality": 80}}
        return base64.b64decode(self._post("goog/cdp/execute", command)["data"])

    def troubles(self) -> list[Trouble]:
        """What went wrong since the last look."""
        return [*self._console_errors(), *self._failed_requests()]

    def _console_errors(self) -> Iterator[Trouble]:
        for entry in self._post("se/log", {"type": "browser"}):
            if entry["level"] == "SEVERE":
                yield Trouble("console", "", entry["message"])

    def _failed_requests(self) -> Iterator[Trouble]:
        urls: dict[str, str] = {}
        for entry in self._post("se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            told = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                urls[told["requestId"]] = told["request"]["url"]
            elif message["method"] == "Network.responseReceived" and told["response"]["status"] >= 400:
                yield Trouble("request", told["response"]["url"], str(told["response"]["status"]))
            elif message["method"] == "Network.loadingFailed" and not told.get("canceled"):
                yield Trouble("request", urls.get(told["requestId"], ""), told["errorText"])

    def _post(self, command: str, body: Any) -> Any:
        answer = httpx.post(f"{self.session_url}/{command}", json=body, timeout=120).json()
        value = answer["value"]
        assert not (isinstance(value, dict) and "error" in value), value
        return value


@contextmanager
def chromium(directory: Path) -> Iterator[Browser]:
    """A fresh browser, within a `with` block. `directory` takes its profile."""
    port = free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--allowed-ips=" + HOST],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_listener(port, driver)
        session_url = _begin_session(f"http://{HOST}:{port}/session", directory)
        try:
            yield Browser(session_url)
        finally:
            httpx.delete(session_url, timeout=60)
    finally:
        driver.terminate()
        driver.wait()


def _await_listener(port: int, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not accepts_connections(port):
        assert driver.poll() is None, "chromedriver ended"
        assert time.monotonic() < deadline, "chromedriver does not start"
        time.sleep(POLL_SECONDS)


def _begin_session(url: str, directory: Path) -> str:
    options = {
        "binary": shutil.which("chromium"),
        "args": [*ARGUMENTS, f"--user-data-dir={directory / 'chromium'}"],
    }
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
    answer = httpx.post(url, json={"capabilities": {"alwaysMatch": wanted}}, timeout=120).json()
    assert "sessionId" in answer["value"], answer
    return f"{url}/{answer['value']['sessionId']}"
