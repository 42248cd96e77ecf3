"""Checks every request before the application sees it, and gives every answer its headers.

* The Host header must name this server: a foreign page whose name was pointed at 127.0.0.1 has another one.
* A token, compared in constant time: `Authorization: Bearer`, the cookie, or once `?token=` in the link, which becomes
  a cookie and a redirect to the same page without the token.
* Requests that change something must not come from another origin.
* The body is bounded, whether or not its length was announced.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dinorankclip.serve.answers import Refused, error_response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST_QUERY = 32_768  # bytes of a query string: 2,000 characters of any script, percent-encoded
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
NO_TOKEN = "this needs the token of the link that the server printed when it started"


def is_loopback(host: str) -> bool:
    return host.strip("[]") in LOOPBACK


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Return the names under which a server bound to `host` may be asked for; None: also any address in numbers."""
    return frozenset(LOOPBACK) if is_loopback(host) else None


class Guard:
    """Wraps an application. `host` is the address that the server is bound to."""

    def __init__(self, app: ASGIApp, token: str, cookie: str, host: str, upload_bytes: int) -> None:
        self._app, self._token, self._cookie, self._upload_bytes = app, token, cookie, upload_bytes
        self._hosts, self._named = allowed_hosts(host), {host.lower(), "localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answering = _WithHeaders(send)
        try:
            redirect = self._check(scope)
            if redirect is not None:
                await redirect(scope, receive, answering)
                return
            await self._app(scope, self._bounded(scope, receive), answering)
        except Refused as refused:
            if answering.started:
                raise
            answer = error_response(scope["path"], refused.status, refused.message, refused.retry_after)
            await answer(scope, receive, answering)

    def _check(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_here(headers.get("host", "")):
            raise Refused(421, "this server is not known under that host name")
        if len(scope["query_string"]) > LONGEST_QUERY:
            raise Refused(414, f"the query is longer than {LONGEST_QUERY:,} bytes")
        origin = headers.get("origin")
        if scope["method"] in CHANGING and origin not in (None, "") and urlsplit(origin).netloc != headers.get("host"):
            raise Refused(403, "this request comes from a page of another origin")
        if self._is_known(self._bearer(headers)) or any(map(self._is_known, self._cookies(headers))):
            return self._without_token(scope) if scope["method"] == "GET" and self._asked(scope) is not None else None
        if scope["method"] == "GET" and self._is_known(self._asked(scope)):
            return self._without_token(scope)
        raise Refused(401, NO_TOKEN)

    def _is_here(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None:
            return False
        if self._hosts is not None:
            return name in self._hosts
        return name in self._named or _is_address(name)

    def _is_known(self, token: str | None) -> bool:
        return token is not None and secrets.compare_digest(token.encode(), self._token.encode())

    @staticmethod
    def _bearer(headers: Headers) -> str | None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else None

    def _cookies(self, headers: Headers) -> Iterable[str]:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return []
        return [cookies[self._cookie].value] if self._cookie in cookies else []

    @staticmethod
    def _asked(scope: Scope) -> str | None:
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return next((value for name, value in pairs if name == "token"), None)

    def _without_token(self, scope: Scope) -> Response:
        """Redirect to the same page without the token in its address, and remember the token in a cookie."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # two slashes would lead to another machine
        answer = RedirectResponse(f"{path}?{kept}" if kept else path, status_code=303)
        if self._is_known(self._asked(scope)):
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that refuses a body of too many bytes."""
        most, words = self._upload_bytes, f"an upload has at most {self._upload_bytes / 1e6:.0f} MB"
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > most:
            raise Refused(413, words)
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise Refused(413, words)
            return message

        return bounded


class _WithHeaders:
    """Adds the headers of every answer, and remembers that the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
