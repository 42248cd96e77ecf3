"""Runs the server: finds a port, prints the link, prepares the set in a thread, and ends gracefully on a signal.

A server of a folder of photos leaves a note that `search` finds (search/served.py), and removes it at its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from dinorankclip.search.photo_search import stamp
from dinorankclip.search.served import Note, leave_note, note_path, remove_note
from dinorankclip.serve.app import create_app
from dinorankclip.serve.collection import Collection
from dinorankclip.serve.guard import is_loopback
from dinorankclip.serve.served_model import ServedModel
from dinorankclip.serve.state import ServedState
from dinorankclip.types import UserError

PORT = 8321
TOKEN_VARIABLE = "DINORANKCLIP_TOKEN"
SHORTEST_TOKEN = 16
GRACE = 3  # seconds that requests have to finish when the server ends
REPORT_EVERY = 5.0  # seconds between two lines about progress on the terminal


def checked_token(host: str, token: str | None) -> str | None:
    """Return the user's token, of a flag or the environment; demand a good one where other machines can connect."""
    token = token or os.environ.get(TOKEN_VARIABLE)
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UserError(f"a token has at least {SHORTEST_TOKEN} characters, not {len(token)}")
    if token is not None and not (token.isascii() and all(sign.isalnum() or sign in "-_.~" for sign in token)):
        raise UserError("a token has letters, digits and - _ . ~ alone, so that it fits into a link")
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} can be reached by other machines: give a token of your own, --token or {TOKEN_VARIABLE}, "
            f"of at least {SHORTEST_TOKEN} characters (the connection is not encrypted)"
        )
    return token


def bound_socket(host: str, port: int | None) -> socket.socket:
    """Bind the port, or the usual one, or any free one if the usual one is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (port,) if port is not None else (PORT, 0):
        # Named, because asyncio sends small answers at once (TCP_NODELAY) on sockets of this protocol alone; without
        # it every answer waits 40 ms for the client's acknowledgement.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host.strip("[]"), candidate))
        except OSError as error:
            bound.close()
            why = error.strerror or str(error)
            continue
        bound.listen(socket.SOMAXCONN)
        return bound
    raise UserError(f"--host {host} --port {port}: {why}; --port 0 takes any free port")


def serve_models(
    models: list[ServedModel],
    collection: Collection,
    *,
    pages: bool,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    runs: Path = Path("runs"),
) -> None:
    """Serve until a signal comes."""
    bound = bound_socket(host, port)
    state = ServedState(models, collection, token=token, runs=runs, host=host, port=bound.getsockname()[1])
    shown_host = f"[{host}]" if ":" in host else host
    link = f"http://{shown_host}:{state.port}/?token={state.token}"
    server = uvicorn.Server(uvicorn.Config(
        create_app(state, pages), log_level="warning", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=GRACE, timeout_keep_alive=30, ws="none",
    ))  # fmt: skip
    notes: list[tuple[Path, Note]] = []
    state.begin(_prepare, state, notes)
    print(f"{'open' if pages else 'serving'}: {link}\nCtrl-C ends", flush=True)
    with _ended_by_signals(server, state):
        _run(server, bound)
    state.stop()
    for path, note in notes:
        remove_note(path, note)
    print("stopped", flush=True)
    if not state.all_ended(GRACE):
        # A batch takes its time on a slow machine. Python would end the thread inside the network, and abort.
        sys.stderr.flush()
        os._exit(0)


def _run(server: uvicorn.Server, bound: socket.socket) -> None:
    """Run the server without uvicorn's own handling of signals, which would end the process before we tidy up."""
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    server.run(sockets=[bound])


@contextlib.contextmanager
def _ended_by_signals(server: uvicorn.Server, state: ServedState) -> Iterator[None]:
    def end(*_: Any) -> None:
        server.force_exit = server.should_exit  # a second signal waits for nothing
        server.should_exit = True
        state.stopping.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(state: ServedState, notes: list[tuple[Path, Note]]) -> None:
    """Embed the set, print how far that is, and leave a note for `search`, which is added to `notes`."""
    done, began = threading.Event(), time.monotonic()

    def report() -> None:
        printed = None
        while not done.wait(REPORT_EVERY):
            if state.progress is not None and state.progress["total"] and state.progress != printed:
                printed = state.progress
                print("{what}: {done:,} of {total:,}".format(**printed), file=sys.stderr, flush=True)

    threading.Thread(target=report, daemon=True, name="report").start()
    try:
        state.prepare()
    finally:
        done.set()
    if state.failed:
        print(f"error: {state.failed}", file=sys.stderr, flush=True)
    elif state.ready:
        count, seconds = len(state.collection.usable), time.monotonic() - began
        print(f"ready: {count:,} images in {seconds:.1f} s", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            _leave_note(state, notes)


def _leave_note(state: ServedState, notes: list[tuple[Path, Note]]) -> None:
    """Tell `search` where photos are searched with model a. A model whose files changed since it was loaded is left
    out: the note would send questions for the new weights to the old."""
    photos, model = state.collection.photos, state.models["a"]
    if photos is None or model.stamp is None or stamp(model.name) != model.stamp:
        return
    here = "127.0.0.1" if state.host in ("0.0.0.0", "localhost") else state.host
    note = Note(here, state.port, state.token, state.collection.photos_digest)
    notes.append((note_path(photos, model.stamp), note))
    leave_note(*notes[-1])
