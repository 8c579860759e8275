"""Headless Chromium through its debugging pipe: open a page at a width, ask it, photograph it.

As a program, to look at a page: ``python -m tests.reports.browser PAGE WIDTH OUT.png [dark]``.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
_PROBE = """(() => {
  const seen = [...document.querySelectorAll('img, svg')].map(e => e.getBoundingClientRect());
  const texts = [...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect());
  return JSON.stringify({
    scroll: document.documentElement.scrollWidth, width: window.innerWidth,
    images: seen.length, empty: seen.filter(r => r.width < 50 || r.height < 50).length,
    broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).length,
    smallest: Math.min(...texts.map(r => Math.min(r.height, r.width || 99)), 99),
    text: document.body.innerText, scripts: document.scripts.length,
    fired: window.fired === undefined ? null : String(window.fired),
  });
})()"""
_TEXTS = """(() => {
  const out = [];
  const walk = node => {
    if (node.nodeType === 3 && node.data.trim()) out.push(node.data.trim());
    if (['SCRIPT', 'STYLE', 'TEMPLATE'].includes(node.nodeName)) return;
    if (node.shadowRoot) node.shadowRoot.childNodes.forEach(walk);
    node.childNodes.forEach(walk);
  };
  walk(document.body);
  return out.join('\\n');
})()"""
_IMAGES = """(() => {
  const out = [];
  const walk = node => {
    if (node.nodeName === 'IMG') out.push([node.naturalWidth, node.naturalHeight]);
    if (node.shadowRoot) node.shadowRoot.childNodes.forEach(walk);
    node.childNodes.forEach(walk);
  };
  walk(document.body);
  return out;
})()"""


class Browser:
    """A Chromium process with one page."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_in, self.write = os.pipe()
        self.read, write_out = os.pipe()
        command = [PROGRAM, *_FLAGS, f"--user-data-dir={self.home.name}", "about:blank"]
        script = f'exec "$@" 3<&{read_in} 4>&{write_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(read_in, write_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_in)
        os.close(write_out)
        self.rest, self.number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = os.read(self.read, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        raw, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method; events that come before it are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
        """What a page is like at a width; ``errors``: console, exceptions, and what it loads."""
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())
        value = self.call("Runtime.evaluate", expression=_PROBE)["result"]["value"]
        found: dict[str, Any] = json.loads(value)
        bad = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        found["errors"] = [e for e in self.events if e["method"] in bad]
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        urls = [e["params"]["request"]["url"] for e in sent]
        found["requests"] = [u for u in urls if not u.startswith("data:")][1:]
        return found

    def visit(self, url: str, *, width: int = 1400, height: int = 1000) -> None:
        """Begin to load a page; ``wait_for`` its texts."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url="about:blank")  # else only the part after # changes
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        given = {"expression": expression, "returnByValue": True}
        return self.call("Runtime.evaluate", **given)["result"].get("value")

    def texts(self) -> str:
        """The texts of the page and of its custom elements, which ``innerText`` leaves out."""
        return str(self.evaluate(_TEXTS))

    def images(self) -> list[list[int]]:
        """[width, height] of all pictures, in pixels of their files; 0: not loaded."""
        found: list[list[int]] = self.evaluate(_IMAGES)
        return found

    def wait_for(self, *parts: str, seconds: float = 30.0) -> str:
        """The texts of the page once all ``parts`` are among them."""
        end = time.monotonic() + seconds
        while True:
            found = self.texts()
            if all(part in found for part in parts):
                return found
            missing = [part for part in parts if part not in found]
            assert time.monotonic() < end, f"the page does not show {missing}: {found[-2000:]}"
            time.sleep(0.2)

    def photograph(self, out: Path) -> None:
        """Write the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        out.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the process."""
        os.close(self.write)
        os.close(self.read)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.home.cleanup()


if __name__ == "__main__":
    browser = Browser()
    try:
        found = browser.open(Path(sys.argv[1]), int(sys.argv[2]), dark="dark" in sys.argv[4:])
        found.pop("text")
        print(found)
        browser.photograph(Path(sys.argv[3]))
    finally:
        browser.close()
