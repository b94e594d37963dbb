"""Headless Chromium on a page, through the DevTools protocol over two pipes: real clicks, and what is then shown."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page was not opened")
_OFF = ("dev-shm-usage", "gpu", "quic", "background-networking", "component-update", "sync")


class Browser:
    """A page as a person has it. Its own policy stays in force: nothing is put into it, it is only looked at.

    page: a file. profile: a new folder for the browser's own files. size: width and height of the window in pixels.
    touch: whether it is a phone. dark: the colour scheme that the system asks for.
    """

    def __init__(
        self,
        page: Path,
        profile: Path,
        *,
        address: str = "",
        size: tuple[int, int] = (1200, 900),
        touch: bool = False,
        dark: bool = False,
    ) -> None:
        self._count, self._rest = 0, b""
        self._session: dict[str, str] = {}
        for_it, self._commands = os.pipe()
        self._answers, from_it = os.pipe()
        switches = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{each}" for each in _OFF)]
        switches += [f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        # Chromium reads commands from 3 and writes answers to 4, whatever their numbers are here.
        line = f'exec "$0" "$@" 3<&{for_it} 4>&{from_it}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, str(CHROMIUM), *switches],
            pass_fds=(for_it, from_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(for_it)
        os.close(from_it)
        (target,) = (each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page")
        session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        width, height = size
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=f"{page.as_uri()}#{address}")
        self.until("location.protocol === 'file:' && document.readyState === 'complete'")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)  # at the end of its commands it ends itself
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def ask(self, method: str, **options: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": options, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._answers, 1 << 16)
                assert more, "chromium ended"
                self._rest += more
            line, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, expression: str) -> Any:
        """What an expression in the page is."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + 30
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """The visible words of the first such element."""
        return " ".join(self.value(f"document.querySelector({json.dumps(selector)}).innerText").split())

    def click(self, selector: str, x: float = 0.5, y: float = 0.5, *, touch: bool = False) -> None:
        """Press a button of the mouse, or a finger, at a place of the first such element, in shares of its size."""
        place = self.value(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            f"return [box.left + {x} * box.width, box.top + {y} * box.height]; }})()"
        )
        at = {"x": place[0], "y": place[1]}
        if touch:
            self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
            self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            return
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for moment in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=moment, button="left", clickCount=1, **at)

    def picture(self, whole: bool = False) -> bytes:
        """What is to be seen, as PNG; ``whole``: also what one would have to scroll to."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
