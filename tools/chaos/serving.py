"""Servers that are asked a few things and then ended by SIGTERM, as the work of a job: `serve` and `explore`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from dinorankclip.commands.entry import main
from tools.chaos import children

TOKEN = "a-token-of-the-campaign"
ANSWERS = Path("answers.json")
LONGEST = 60.0  # seconds until the server must be ready


def serve() -> None:
    ask = ["/api/search?q=" + quote("a red cat") + "&k=3", "/api/search?q=tree&k=6"]
    _serve(["serve", "run", "--images", "photos"], ask)


def explore(pairs: Path) -> None:
    ask = ["/api/search?q=" + quote("a red cat") + "&k=3", "/api/image/1/about"]
    _serve(["explore", "run", "--data", str(pairs), "--split", "val"], ask)


def answers_digest(folder: Path) -> str:
    return (folder / ANSWERS).read_text()


def _serve(words: Sequence[str], paths: Sequence[str]) -> None:
    port = children.free_port()
    threading.Thread(target=_ask, args=(port, paths), daemon=True).start()
    main([*words, "--port", str(port), "--token", TOKEN])


def _ask(port: int, paths: Sequence[str]) -> None:
    """Wait until the server is ready, write its answers, and ask it to end."""
    begun = time.monotonic()
    while time.monotonic() - begun < LONGEST:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _get(port, "/api/health").get("ready"):
                break
        time.sleep(0.02)
    answers = [_get(port, path) for path in paths]
    for answer in answers:
        answer.pop("seconds", None)
    ANSWERS.write_text(json.dumps(answers, sort_keys=True))
    os.kill(os.getpid(), signal.SIGTERM)


def _get(port: int, path: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        return json.loads(connection.getresponse().read())
