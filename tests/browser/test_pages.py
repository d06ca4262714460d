"""The pages of ``bench --html`` and ``check --html`` in Chromium, without a network."""

import os

import pytest

from command_line import call

pytestmark = pytest.mark.browser

RUN = (
    "--device",
    "cpu",
    "--vocab-size",
    256,
    "--sampler",
    "native",
    "--sampler",
    "torch-sort",
    "--repeats",
    3,
)


def test_pages_show_their_charts_and_tables_and_load_nothing(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright; run `make test-reports`")
    bench, check, complaints = tmp_path / "bench.html", tmp_path / "check.html", []
    assert call("bench", *RUN, "--batch", 1, "--batch", 2, "--html", bench).exit_code == 0
    assert (
        call("check", "native", "--device", "cpu", "--quick", "--only", "output", "--html", check).exit_code
        == 0
    )
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))
        page.goto(bench.as_uri())
        page.wait_for_selector("body[data-drawn='1']")
        assert page.locator(".chart svg .mark-line path").count() == 4
        assert page.locator("tbody tr").count() == 4
        page.goto(check.as_uri())
        assert "output" in page.locator("table").first.inner_text()
        browser.close()
    assert complaints == []
