"""The page in a real browser: it loads from a file, filters, sorts, links, and hostile text does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser


class Page:
    """What a person does with the page."""

    def __init__(self, driver: Any, site: Path) -> None:
        self.driver = driver
        self.site = site

    def open(self, name: str = "", width: int = 1440, scheme: str = "light", hash: str = "") -> None:
        self.run("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.run("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.driver.get("about:blank")  # else only the hash would change
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get((self.site / name / "index.html").as_uri() + hash)
        self.wait("return document.documentElement.dataset.ready === 'true'")

    def run(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 10, poll_frequency=0.05).until(lambda driver: driver.execute_script(script))

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        self.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", self.find(selector))
        self.find(selector).click()

    def search(self, text: str, shows: str) -> None:
        """Type into the filter, and wait until the table has drawn what the last key left."""
        self.find("#search").send_keys(text)
        self.wait(f"return document.getElementById('search').value === {json.dumps(text)}")
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        self.wait(f"return document.getElementById('shown').textContent === {json.dumps(shows)}")

    def column(self, field: str) -> list[str]:
        """Texts of the rows that are drawn, in their order."""
        self.wait("return document.querySelector('.tabulator-row, .tabulator-placeholder') !== null")
        return self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)",
            f".tabulator-row [tabulator-field='{field}']",
        )


@pytest.fixture
def page(chromium: Any, site: Path) -> Page:
    return Page(chromium, site)


@pytest.mark.parametrize("name", ["", "one", "none"])
def test_loads_from_a_file_without_errors_and_without_requests(page: Page, name: str) -> None:
    page.open(name)
    assert [entry for entry in page.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []


def test_text_filters_the_table_and_says_how_many(page: Page) -> None:
    page.open()
    page.search("hypot", shows="5 of 62 rows")
    assert set(page.column("op")) == {"aten::hypot.out"}
    page.click("#clear")
    page.wait("return document.getElementById('shown').textContent === '62 rows'")


def test_a_filter_without_a_match_says_so(page: Page) -> None:
    page.open()
    page.search("no such model", shows="0 of 62 rows")
    page.wait("return document.querySelector('.tabulator-placeholder') !== null")
    assert "No row matches" in page.find(".tabulator-placeholder").text


def test_a_matrix_cell_filters_to_its_rows(page: Page) -> None:
    page.open()
    page.click(".cell[data-family='gpt2'][data-column='1']")
    page.wait("return document.getElementById('shown').textContent === '1 of 62 rows'")
    assert page.column("model") == ["transformers:gpt2"]
    assert page.column("backend") == ["inductor"]


def test_a_status_chip_filters_by_keyboard(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open()
    page.find(".facets [data-status='divergent']").send_keys(Keys.ENTER)
    page.wait("return document.getElementById('shown').textContent === '2 of 62 rows'")
    assert page.find(".facets [data-status='divergent']").get_attribute("aria-pressed") == "true"


def test_sorts_by_number_with_the_absent_last(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open()
    header = page.find(".tabulator-col[tabulator-field='abs']")
    header.send_keys(Keys.ENTER)
    page.wait("return document.querySelector(\".tabulator-col[tabulator-field='abs']\").ariaSort === 'descending'")
    descending = page.column("abs")
    header.send_keys(Keys.ENTER)
    page.wait("return document.querySelector(\".tabulator-col[tabulator-field='abs']\").ariaSort === 'ascending'")
    ascending = page.column("abs")
    assert [float(text) for text in descending[:5]] == sorted((float(text) for text in descending[:5]), reverse=True)
    assert [float(text) for text in ascending[:5]] == sorted(float(text) for text in ascending[:5])
    assert float(descending[0]) > float(ascending[0])


def test_a_message_leads_to_its_failure_even_inside_a_fold(page: Page) -> None:
    page.open()
    anchors = page.js("return [...document.querySelectorAll('.rest .failure')].map(e => e.id)")
    assert len(anchors) == 2
    page.open(hash="#" + anchors[-1])
    assert page.find("#" + anchors[-1]).is_displayed()
    page.open()
    page.search("gpt2 inductor", shows="1 of 62 rows")
    page.click(".tabulator-row [tabulator-field='message'] a")
    page.wait("return document.querySelector('.failure:target h4')?.textContent === 'transformers:gpt2'")


def test_a_row_opens_with_its_numbers_and_its_command(page: Page) -> None:
    page.open()
    page.search("llama torchtpu", shows="1 of 62 rows")
    page.click(".tabulator-row .link.model")
    text = page.find("dialog").text
    assert "calipers check transformers:llama/LlamaForCausalLM --backend torchtpu --mode eager" in text
    assert "aten::cumsum as a reduce_window" in text
    assert "× budget" in text
    assert "11 distinct" in text


def test_scrolling_to_the_table_keeps_the_focus_in_it(page: Page) -> None:
    page.open()
    page.js("document.querySelector('.tabulator-row .link.model').focus()")
    page.js("window.scrollTo(0, 0)")
    page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    page.js("document.getElementById('rows').scrollIntoView({behavior: 'instant'})")
    page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.js("return document.activeElement.className") == "link model"


def test_hostile_text_does_nothing(page: Page) -> None:
    page.open()
    page.search("pwned", shows="2 of 62 rows")
    page.click(".tabulator-row .link.model")
    assert page.js("return window.pwned") is None
    assert page.js("return document.querySelectorAll('img, dialog script, dialog b, #failures i').length") == 0


def test_the_policy_stops_an_injected_script(page: Page) -> None:
    page.open()
    page.js("const s = document.createElement('script'); s.textContent = 'window.pwned = 9'; document.body.append(s);")
    assert page.js("return window.pwned") is None


def test_follows_the_colour_scheme(page: Page) -> None:
    shade = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    page.open(scheme="light")
    assert min(page.js(shade)) > 200
    page.open(scheme="dark")
    assert max(page.js(shade)) < 60


@pytest.mark.parametrize("name", ["", "one", "none"])
@pytest.mark.parametrize("width", [360, 768, 1440, 2560])
def test_never_scrolls_sideways(page: Page, name: str, width: int) -> None:
    page.open(name, width=width)
    assert page.js("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_aa(page: Page, scheme: str) -> None:
    page.open(scheme=scheme)
    assert page.js((Path(__file__).parent / "contrast.js").read_text()) == []
