"""The built site over a loopback address, and Chromium: `make test-site` runs these tests in its own environment."""

import functools
import http.server
import os
import threading

import pytest

from built_site import SITE, newest, page_paths

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_generate_tests(metafunc):
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", page_paths())


@pytest.fixture(scope="session")
def address():
    """The address of the newest version."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{newest()}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser):
    """One context, and so one cache, for all pages of a module."""
    context = browser.new_context(color_scheme="light")
    yield context
    context.close()


@pytest.fixture
def page(context, address):
    """An open page; afterwards whatever the browser complained of fails the test, and so does any other host."""
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url} {request.failure}"))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((address.rpartition("/")[0], "data:", "blob:"))
            or complaints.append(f"another host: {request.url}")
        ),
    )
    yield page
    page.close()
    assert complaints == []
