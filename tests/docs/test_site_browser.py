"""The site as a browser shows it from a disk: nothing is fetched, and the search finds."""

import subprocess
from pathlib import Path

import pytest
from chromium import Chromium

pytestmark = [pytest.mark.system, pytest.mark.browser, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SEARCH = """new Promise((found) => {
  const input = document.querySelector(".md-search__input");
  const result = document.querySelector(".md-search-result__list");
  new MutationObserver(() => result.querySelector("a") && found(result.innerText))
    .observe(result, { childList: true, subtree: true });
  input.focus();
  input.value = "bubble";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  input.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
})"""


@pytest.fixture(scope="module")
def site():
    subprocess.run(["make", "docs"], cwd=ROOT, check=True)
    return ROOT / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1400])
@pytest.mark.parametrize("page", ["index", "tutorial_split", "layout", "reference/cli"])
def test_a_page_stands_by_itself(site, browser, page, width, scheme):
    seen = browser.opens(site / f"{page}.html", width=width, scheme=scheme)
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith(("file:", "data:"))] == []
    assert browser.runs("document.documentElement.scrollWidth <= innerWidth")
    dark = browser.runs("document.body.dataset.mdColorScheme") == "slate"
    assert dark == (scheme == "dark")


def test_the_search_finds_without_a_server(site, browser):
    browser.opens(site / "index.html", width=1400)
    assert "Pipelines: who works when" in browser.runs(SEARCH)
