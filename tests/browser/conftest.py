"""Chromium without a network, and the pages that it opens from the disk."""

import os

import pytest

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium with a fresh profile."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright; run `make test-reports`")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """``opened(file, width=1280, scheme="light")``: the page of a file; complaints and requests fail the test."""
    contexts, complaints = [], []

    def open_file(file, *, width=1280, scheme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda asked: None if asked.url == file.as_uri() else complaints.append(asked.url))
        page.goto(file.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert complaints == []
