"""A server in a thread and a browser that watches itself: errors, dialogs and requests to other machines fail a test.

The tests need Chromium (`apt-get install chromium`) and Playwright (`pip install 'dinorankclip[browser]'`). They are
skipped without them and say what is missing. `make test-browser` installs both.
"""

import os
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 30_000  # milliseconds for anything a page does, on a busy machine


@pytest.fixture(scope="session")
def chromium():
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("browser tests need Chromium, which is not installed: make test-browser installs it")
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need Playwright: make test-browser")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@contextmanager
def running(state_at):
    """Serve `state_at(port)` with its pages in a thread; yield the state and its address."""
    import uvicorn

    from dinorankclip.serve.app import create_app

    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    state = state_at(port)
    settings = uvicorn.Config(create_app(state, True), log_level="warning", timeout_graceful_shutdown=1, ws="none")
    server = uvicorn.Server(settings)
    server.capture_signals = contextmanager(lambda: iter([None]))  # signals belong to pytest
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    assert server.started
    yield state, f"http://127.0.0.1:{port}"
    state.stop()
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def place(chromium, tmp_path_factory):
    """A folder with two runs, of order 3 with students and of order 0 without, and pairs with a damaged photo, a
    hostile caption and a hostile file name."""
    pytest.importorskip("fastapi", reason="pages need the extra serve: pip install 'dinorankclip[serve]'")
    from tests.serve.serving import write_pairs, write_run

    folder = tmp_path_factory.mktemp("explored")
    write_run(folder / "runs" / "three", 3, "full", 0, opened=6.0)
    write_run(folder / "runs" / "zero", 0, None, 1)
    write_pairs(folder / "pairs", 24)
    return folder


@pytest.fixture(scope="session")
def serve(place):
    """Return a function that describes a state of the named runs at a port."""
    from tests.serve.serving import served

    def describe(*runs):
        models = [place / "runs" / run for run in runs]
        return lambda port: served(models, place / "pairs", place / "store", runs=place / "runs", port=port)

    return describe


def prepared(state_at):
    def at(port):
        state = state_at(port)
        state.prepare()
        assert state.ready, state.failed
        return state

    return at


@pytest.fixture(scope="session")
def two(serve):
    """The address of a server of two models."""
    with running(prepared(serve("three", "zero"))) as (_, address):
        yield address


@pytest.fixture(scope="session")
def one(serve):
    """The address of a server of the model of order 0 alone."""
    with running(prepared(serve("zero"))) as (_, address):
        yield address


class Watched:
    """Wraps a page of the browser and keeps what it logged, asked for and received."""

    def __init__(self, page, address):
        from tests.serve.serving import TOKEN

        self.page, self.address = page, address
        self.problems, self.requests, self.received = [], [], {}
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfinished", self._finished)
        page.goto(f"{address}/?token={TOKEN}")

    def _dialog(self, dialog):
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _finished(self, request):
        if "/api/image/" not in request.url or request.url.endswith("/about"):
            self.received[request.url] = request.sizes()["responseBodySize"]

    def open(self, path, ready=True):
        self.received.clear()
        self.page.goto(self.address + path)
        if ready:
            self.page.wait_for_selector("#ready:not([hidden])")
        return self.page

    def strangers(self):
        """Return the addresses of other machines that were asked for anything."""
        here = urlsplit(self.address).netloc
        parts = {url: urlsplit(url) for url in self.requests}
        return [url for url, part in parts.items() if part.scheme not in ("data", "blob") and part.netloc != here]


@pytest.fixture
def watch(chromium):
    """Return a function that opens a watched page; at the end no page has had an error or asked another machine."""
    opened = []

    def begin(address, **options):
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        context = chromium.new_context(**options)
        watched = Watched(context.new_page(), address)
        opened.append((context, watched))
        return watched

    yield begin
    for context, watched in opened:
        context.close()
        assert watched.problems == []
        assert watched.requests and watched.strangers() == []
