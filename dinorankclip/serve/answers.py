"""Turns values into JSON that is safe in any context, and errors into sentences.

JSON is written in ASCII, and `<`, `>` and `&` as escapes: a caption such as `</script>` stays text even where a program
puts the answer into a page. Numbers that are not finite become null.
"""

from __future__ import annotations

import html
import json
import math
from typing import Any

import numpy as np
from starlette.responses import HTMLResponse, JSONResponse, Response

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{status}</title></head>
<body><main><h1>{status}</h1><p>{message}</p><p><a href="/">Back to the first page</a></p></main></body></html>
"""


class Refused(Exception):
    """Ends a request with a status and a sentence for the person who asked."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


class Stopped(Exception):
    """Ends long work because the server is stopping."""


class SafeJSON(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json.dumps(plain(content), allow_nan=False, separators=(",", ":")).translate(_ESCAPES).encode("ascii")


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: arrays as lists, tuples as lists, and null for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return value


def shown(text: str) -> str:
    """Return a name as text: bytes of a file name that are no UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def error_response(path: str, status: int, message: str, retry_after: int | None = None) -> Response:
    """Return an error as JSON below /api, and as a page elsewhere."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if path == "/api" or path.startswith("/api/"):
        return SafeJSON({"message": message}, status, headers)
    return HTMLResponse(_PAGE.format(status=status, message=html.escape(message)), status, headers)
