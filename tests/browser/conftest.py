"""Chromium for the tests of the page: from Debian, headless, without network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reports.sample_run import write_samples

NEEDED = "the browser tests need Chromium: apt-get install chromium chromium-driver, or set CALIPERS_NO_BROWSER=1"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of the sample run, of one backend only (`one`), and of no rows (`none`)."""
    folder = tmp_path_factory.mktemp("site")
    write_samples(folder)
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """A driver, shared by all tests; fails where Chromium is missing."""
    if os.environ.get("CALIPERS_NO_BROWSER") == "1":
        pytest.skip("CALIPERS_NO_BROWSER=1")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        pytest.fail(NEEDED)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as started:
        yield started
