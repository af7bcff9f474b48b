"""Chromium without a window: opens a page offline, and says what it did and shows.

It is spoken to over two pipes (`--remote-debugging-pipe`): a JSON object each way, ended
by a NUL. No port is opened, and no package is needed.
"""

import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-extensions"),
    *("--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb"),
    "--remote-debugging-pipe",
)
_ERRORS = "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"


@dataclass(kw_only=True)
class Seen:
    """What a page did as it was opened."""

    said: list[dict[str, Any]] = field(default_factory=list)
    """Entries of the console and exceptions."""
    asked: list[str] = field(default_factory=list)
    """Addresses that were asked for, but for the page's own and what is in it."""


class Chromium:
    """A browser with one page, as a context.

    Args:
        folder: where it may keep its profile.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        assert program, "no Chromium: make system-packages"
        self._command = (program, *_FLAGS, f"--user-data-dir={folder}", "about:blank")
        self._count, self._seen = 0, Seen()

    def __enter__(self) -> Self:
        theirs, ours = os.pipe()
        mine, their_answers = os.pipe()
        # The browser reads its file 3 and writes its file 4.
        shell = f'exec "$@" 3<&{theirs} 4>&{their_answers}'
        self._child = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *self._command],
            pass_fds=(theirs, their_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(their_answers)
        self._write, self._read = os.fdopen(ours, "wb", 0), os.fdopen(mine, "rb")
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.terminate()
        self._child.wait()
        self._write.close()
        self._read.close()

    def opens(
        self, page: Path, *, width: int, scheme: str = "light", media: str = "screen"
    ) -> Seen:
        """Open a file, as wide as a screen, and wait until it stands."""
        self._seen = Seen()
        self.dresses(width=width, scheme=scheme, media=media)
        self._ask("Page.navigate", url=page.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.runs("document.fonts.ready.then(() => 1)")
        own = page.resolve().as_uri()
        self._seen.asked = [
            url
            for url in self._seen.asked
            if url != own and not url.startswith("data:")
        ]
        return self._seen

    def dresses(self, *, width: int, scheme: str, media: str) -> None:
        """Change the width, light or dark, and screen or paper."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self._ask("Emulation.setEmulatedMedia", media=media, features=wanted)

    def runs(self, script: str) -> Any:
        """Return what an expression is worth in the page, as JSON has it."""
        how = {"returnByValue": True, "awaitPromise": True}
        found = self._ask("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def draws(self, path: Path) -> None:
        """Write the whole page as a picture."""
        height = self.runs("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.runs("innerWidth"), "height": height}
        how = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True}
        path.write_bytes(
            base64.b64decode(self._ask("Page.captureScreenshot", **how)["data"])
        )

    def prints(self, path: Path) -> None:
        """Write the page as it is printed, on A4."""
        how = {"preferCSSPageSize": True, "printBackground": True}
        path.write_bytes(base64.b64decode(self._ask("Page.printToPDF", **how)["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        asked: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        self._write.write(json.dumps(asked).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            pass
        assert "error" not in answer, (method, answer["error"])
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        """Read a message, and keep what it says of the page."""
        told = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser has ended"
            told += byte
        message: dict[str, Any] = json.loads(told)
        method, params = message.get("method"), message.get("params", {})
        if method in _ERRORS:
            self._seen.said.append(params)
        elif method == "Network.requestWillBeSent":
            self._seen.asked.append(params["request"]["url"])
        return message
