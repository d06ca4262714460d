"""What a reader does with the site: search, copy code, change colours and versions, open it from a disk."""

import pytest

from built_site import SITE, newest

pytest.importorskip("playwright", reason="needs the tools of `make test-site`")

pytestmark = pytest.mark.browser


def test_the_search_finds_a_page_by_a_word_of_its_text(page, address):
    page.goto(f"{address}/index.html")
    page.get_by_role("textbox", name="Search").first.fill("xtc_probability")
    results = page.locator(".md-search-result__item a").first
    results.wait_for()
    assert "reference/" in results.get_attribute("href") or "docs/" in results.get_attribute("href")


def test_a_button_copies_the_code_of_its_block(page, context, address):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{address}/docs/add-a-filter.html")
    block = page.locator("div.highlight").first
    block.locator("button.md-code__button[data-md-type=copy]").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith(
        "from tokendraw.filters import Filter\n"
    )
    assert page.locator("div.highlight").count() == page.locator("button[data-md-type=copy]").count()


def test_dark_mode_is_chosen_by_a_button_and_kept_on_the_next_page(page, address):
    page.goto(f"{address}/index.html")
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert page.evaluate(scheme) == "default"
    page.get_by_title("Switch to dark mode").click()
    page.goto(f"{address}/docs/contract.html")
    assert page.evaluate(scheme) == "slate"
    page.get_by_title("Switch to light mode").click()


def test_the_front_leads_to_the_newest_version_and_the_menu_names_it(page, address):
    page.goto(f"{address.rpartition('/')[0]}/index.html", wait_until="networkidle")
    page.wait_for_url(f"{address}/index.html")
    menu = page.locator(".md-version__link")
    menu.first.wait_for(state="attached")
    assert menu.first.inner_text().strip() == newest()


def test_the_site_opens_from_a_disk(browser):
    page = browser.new_page()
    page.goto((SITE / newest() / "docs/index.html").as_uri())
    page.get_by_role("link", name="operators.md").click()
    assert page.url.endswith("docs/operators.html")
    assert page.locator("h1").inner_text().startswith("For operators")
    page.close()
