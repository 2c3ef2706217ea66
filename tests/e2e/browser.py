"""A real headless Chromium, driven over the WebDriver protocol of Debian's chromedriver with the standard library alone."""

import base64
import json
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

MISSING = "this test needs {0}, which is not installed: apt-get install chromium chromium-driver"
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-device-scale-factor=1"),
    *("--hide-scrollbars", "--disable-extensions", "--disable-default-apps", "--lang=en-GB"),
]


class Browser:
    """One window; ``load`` opens a file, ``run`` evaluates JavaScript in it.

    Args:
        place: A folder for what the browser writes.
        dark: Whether the system is said to be dark.
    """

    def __init__(self, place, *, dark=False, width=1280, height=900):
        driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
        for name, found in (("chromedriver", driver), ("chromium", chromium)):
            if found is None:
                pytest.fail(MISSING.format(name))
        log = (place / "chromedriver.log").open("w+")
        self._driver = subprocess.Popen([driver, "--port=0"], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self._session = None
        try:
            self._url = f"http://127.0.0.1:{self._port(place / 'chromedriver.log')}"
            flags = [*FLAGS, f"--user-data-dir={place / 'profile'}", f"--window-size={width},{height}"]
            options = {"args": flags, "binary": chromium}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            self._session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            self.theme(dark=dark)
            self.size(width, height)
        except BaseException:
            self.close()
            raise
        finally:
            log.close()

    def _port(self, path):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(r"started successfully on port (\d+)", path.read_text())
            if found:
                return int(found[1])
            assert self._driver.poll() is None, path.read_text()
            time.sleep(0.05)
        raise AssertionError(f"chromedriver did not start:\n{path.read_text()}")

    def _call(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def _do(self, method, path, body=None):
        return self._call(method, f"/session/{self._session}{path}", body)

    def devtools(self, command, **parameters):
        return self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def theme(self, *, dark):
        """Say that the system is dark or light."""
        self.devtools(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )

    def frames(self):
        """Wait until what was asked for has been drawn."""
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def load(self, page):
        """Open a file; what was logged before is forgotten."""
        assert page.is_file(), page
        self.log("browser"), self.log("performance")
        self._do("POST", "/url", {"url": page.absolute().as_uri()})

    def run(self, script, *arguments):
        """Evaluate the body of a function."""
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition, seconds=60):
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(f"return {condition}")):
            assert time.monotonic() < deadline, f"never became true: {condition}"
            time.sleep(0.05)
        return found

    def log(self, kind):
        return self._do("POST", "/se/log", {"type": kind})

    def requests(self):
        """Return the addresses of every request since the page was opened, its own among them."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def console(self):
        """Return what was written to the console, errors and violations of the policy included, but for tips about speed."""
        return [entry["message"] for entry in self.log("browser") if "willReadFrequently" not in entry["message"]]

    def mouse(self, kind, x, y, buttons=0, clicks=0):
        self.devtools(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button="left" if kind != "mouseMoved" else "none",
            buttons=buttons,
            clickCount=clicks,
        )

    def keys(self, *names):
        for name in names:
            for kind in ("keyDown", "keyUp"):
                text = name if len(name) == 1 else ""
                self.devtools(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=name,
                    code=name,
                    **({"text": text} if kind == "keyDown" and text else {}),
                )

    def shot(self, path, *, whole=False):
        """Write a screenshot, of the whole page if wanted."""
        given = {"format": "png"}
        if whole:
            size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
            given |= {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
            }
        path.write_bytes(base64.b64decode(self.devtools("Page.captureScreenshot", **given)["data"]))

    def close(self):
        """End the browser and its driver."""
        if self._session is not None:
            try:
                self._do("DELETE", "")
            except OSError:
                pass
        self._driver.send_signal(signal.SIGTERM)
        try:
            self._driver.wait(20)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
