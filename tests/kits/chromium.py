"""A headless Chromium driven over the DevTools protocol: resources, console messages and keyboard access of a page."""

import base64
import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip
WAIT = 60


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab. ``problems`` collects console errors, uncaught exceptions, failed requests and responses from 400 on."""

    def __init__(self, socket) -> None:
        self._socket = socket
        self._next = 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.events: list[dict] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self._next += 1
        self._socket.send(json.dumps({"id": self._next, "method": method, "params": params}))
        while True:
            message = self._receive(WAIT)
            if message.get("id") == self._next:
                assert "error" not in message, message
                return message["result"]

    def _receive(self, seconds: float) -> dict:
        message = json.loads(self._socket.recv(timeout=seconds))
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, params: dict) -> None:
        self.events.append({"method": method, "params": params})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.loadingFailed" and not params.get("canceled"):
            self.problems.append(f"request failed: {params.get('errorText')}")
        elif method == "Network.responseReceived" and params["response"]["status"] >= 400:
            self.problems.append(f"{params['response']['status']} {params['response']['url']}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            said = details.get("exception", {}).get("description", "")
            self.problems.append(f"exception: {details.get('text')} {said}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {params['entry']['text']}")

    def wait_for(self, method: str) -> None:
        """Receive events until a new event of that kind arrives."""
        before = sum(event["method"] == method for event in self.events)
        end = time.monotonic() + WAIT
        while sum(event["method"] == method for event in self.events) == before:
            assert time.monotonic() < end, f"no {method}"
            self._receive(WAIT)

    def settle(self, seconds: float = 0.3) -> None:
        """Receive the events of some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self._receive(left)
            except TimeoutError:
                return

    def open(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.wait_for("Page.loadEventFired")
        self.settle(0.1)

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the width of the window, and the light or dark scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def js(self, expression: str):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
            )

    def screenshot(self, path: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def chromium_page():
    """Yield a fresh browser with one tab; both and the profile are removed afterwards."""
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            root = _devtools_address(browser)
            with connect(root, max_size=None) as control:
                control.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
                while (answer := json.loads(control.recv(timeout=WAIT))).get("id") != 1:
                    pass
            target = next(one["targetId"] for one in answer["result"]["targetInfos"] if one["type"] == "page")
            with connect(re.sub(r"/devtools/.*", f"/devtools/page/{target}", root), max_size=None) as socket:
                page = Page(socket)
                yield page
                with suppress(ConnectionClosed):
                    page.call("Browser.close")
        finally:
            try:
                browser.wait(timeout=10)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.wait()
            browser.stderr.close()


def _devtools_address(browser: subprocess.Popen) -> str:
    for line in browser.stderr:
        if found := re.search(r"DevTools listening on (ws://\S+)", line):
            return found[1]
    raise AssertionError(f"chromium ended with {browser.wait()} before it listened")
