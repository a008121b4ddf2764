"""A headless Chromium for tests of pages: ChromeDriver's WebDriver protocol, which is JSON over HTTP."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ["headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
FLAGS += ["disable-component-update", "disable-sync", "hide-scrollbars"]
ARROWS = {"left": "\ue012", "up": "\ue013", "right": "\ue014", "down": "\ue015"}  # names of keys in the protocol
ENTER, TAB = "\ue007", "\ue004"


class Browser:
    """One window; `with Browser() as browser`. A command that fails raises RuntimeError with what the driver says."""

    def __init__(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        self.dark = dark
        self._home = TemporaryDirectory(ignore_cleanup_errors=True)  # its processes end a little later than it
        log = Path(self._home.name, "driver.log")
        with log.open("w") as stream:
            self._driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=stream, stderr=subprocess.STDOUT)
        end = time.monotonic() + 30
        while "on port " not in (said := log.read_text()) or "successfully" not in said:
            if time.monotonic() > end or self._driver.poll() is not None:
                raise RuntimeError(f"ChromeDriver did not start: {said}")
            time.sleep(0.05)
        port = said.rsplit("on port ", 1)[1].split(".")[0]
        self._address = f"http://127.0.0.1:{port}/session"
        arguments = [f"--{flag}" for flag in FLAGS] + [f"--user-data-dir={self._home.name}/profile"]
        options: dict[str, Any] = {"args": arguments, "binary": CHROMIUM}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "browserName": "chrome"}
        self._address += "/" + self.do("", capabilities={"alwaysMatch": wanted})["sessionId"]
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.do("", method="DELETE")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._home.cleanup()

    def do(self, path: str, *, method: str = "POST", **body: Any) -> Any:
        """Send one command of the protocol; returns its value."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.do("/goog/cdp/execute", cmd=command, params=parameters)

    def open(self, path: Path) -> None:
        """Open a page from a file."""
        self.do("/url", url=path.resolve().as_uri())

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript, the body of a function of `arguments`; what it returns."""
        return self.do("/execute/sync", script=script, args=list(arguments))

    def click(self, selector: str) -> None:
        """Scroll to an element and click it; nothing may cover it."""
        element = self.do("/element", using="css selector", value=selector)
        self.run("arguments[0].scrollIntoView({ block: 'center' })", element)
        self.do(f"/element/{next(iter(element.values()))}/click")

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def point(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window."""
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y), "origin": "viewport"}
        self.do("/actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}])

    def errors(self) -> list[str]:
        """What stands in the console since the last call, from warnings upwards."""
        return [
            each["message"] for each in self.do("/se/log", type="browser") if each["level"] in ("SEVERE", "WARNING")
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(found["data"]))
