"""A headless Chromium: what it logs, what it asks other hosts for, and what of a page cannot be reached."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.services import unavailable

#: Names of the browser and of its driver: Debian's, Ubuntu's, Google's.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

WIDE, PHONE = (1280, 900), (390, 844)


class Browser:
    """One browser with one window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self.driver.get(url)

    def resize(self, size: tuple[int, int]) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """The system's theme: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def save(self, path: Path) -> None:
        """A picture of the whole page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self.driver.execute_script(
            "return [innerWidth, Math.min(document.documentElement.scrollHeight, 2400)]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        import base64

        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def shown(self, selector: str) -> str | None:
        """The text of the first one, read in one step: an update may replace it at any moment."""
        script = "const one = document.querySelector(arguments[0]); return one && one.textContent.trim()"
        return self.driver.execute_script(script, selector)

    def count(self, selector: str) -> int:
        """How many there are, in one step."""
        return self.driver.execute_script("return document.querySelectorAll(arguments[0]).length", selector)

    def link(self, text: str) -> Any:
        return self.driver.find_element(By.PARTIAL_LINK_TEXT, text)

    @property
    def text(self) -> str:
        """What a user sees."""
        return self.driver.execute_script("return document.body.innerText")

    @property
    def title(self) -> str:
        return self.driver.title

    def complaints(self) -> list[str]:
        """What the browser has logged since the last call: errors of scripts, refusals of the policy."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            # A page that is left closes its event stream.
            if "net::ERR_ABORTED" not in entry["message"]
        ]

    def hosts(self) -> set[str]:
        """The hosts that were asked for anything since the last call."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                if url.scheme in ("http", "https", "ws", "wss"):
                    found.add(url.netloc)
        return found

    def barriers(self) -> list[str]:
        """What keeps people out: no name, no label, no alternative, low contrast, wrong order of headings."""
        return list(self.driver.execute_script((Path(__file__).parent / "barriers.js").read_text()))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of our own; skips where there is none."""
    binary = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver_path = shutil.which("chromedriver")
    if binary is None or driver_path is None:
        unavailable("chromium", "neither chromium nor chromedriver is installed")
    options = Options()
    options.binary_location = binary
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    # Its own background traffic would look like that of the page.
    for argument in ("--disable-background-networking", "--disable-component-update", "--no-first-run"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=driver_path))
    try:
        browser = Browser(driver)
        browser.resize(WIDE)
        yield browser
    finally:
        driver.quit()
