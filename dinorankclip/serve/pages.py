"""Serves the HTML pages of `explore`: one template a page, assets by name, small fragments that htmx swaps in.

The scripts ask the API for everything that changes. A page holds no inline script or style, so the content security
policy can forbid both. Jinja2 escapes every text, because captions and file names come from outside.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from dinorankclip.serve.answers import Refused, error_response

if TYPE_CHECKING:
    from jinja2 import Environment

    from dinorankclip.serve.state import ServedState

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
_ITEMS = 50  # of one page of a queue
_POLL_SECONDS = 1  # between two questions of a page whose server is not ready


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("dinorankclip", "serve/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _assets() -> dict[str, tuple[bytes, str, str]]:
    """Return bytes, media type and entity tag of every asset by its name; no other file can be asked for."""
    found = {}
    for entry in files("dinorankclip").joinpath("serve/assets").iterdir():
        kind = _KINDS.get(entry.name[entry.name.rfind(".") :])
        if kind is not None:
            data = entry.read_bytes()
            found[entry.name] = (data, f"{kind}; charset=utf-8", f'"{hashlib.sha256(data).hexdigest()[:16]}"')
    return found


def render(template: str, **values: Any) -> str:
    """Fill a template. Bytes of file names that are not UTF-8 become replacement characters."""
    text = _templates().get_template(template).render(values)
    return text.encode("utf-8", "replace").decode("utf-8")


def page_error_response(path: str, status: int, message: str, retry_after: int | None = None) -> Response:
    """Return an error as JSON below /api, and in the look of the pages elsewhere."""
    plain = error_response(path, status, message, retry_after)
    if plain.media_type != "text/html":
        return plain
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return HTMLResponse(render("error.html", status=status, message=message), status, headers)


def _short_names(names: list[str]) -> list[str]:
    """Return the last part of each model's path, with its folder in front if the last parts are equal."""
    parts = [name.rstrip("/").split("/") for name in names]
    short = [part[-1] for part in parts]
    return short if len(set(short)) == len(short) else ["/".join(part[-2:]) for part in parts]


def _links(two: bool) -> list[tuple[str, str, str]]:
    """Return name, address and key of the pages, in order of worth."""
    first = [("Duel", "/", "duel"), ("Search", "/search", "search")] if two else [("Search", "/", "search")]
    return [
        *first,
        ("Inside an image", "/inside/0", "inside"),
        ("Lists", "/lists", "lists"),
        ("Planes", "/planes", "planes"),
        ("Data", "/data", "data"),
        ("Runs", "/runs", "runs"),
        ("About", "/about", "about"),
    ]


def pages_router(state: ServedState) -> APIRouter:
    """Return the routes of all pages; `state` is what the server holds: models, the set and how far it is."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    shorts = _short_names([model.name for model in state.models.values()])
    served = [{"id": id, "name": short, "full": state.models[id].name} for id, short in zip(state.models, shorts)]
    links = _links(len(served) > 1)

    def page(key: str, heading: str, **values: Any) -> HTMLResponse:
        common = {"models": served, "links": links, "here": key, "title": heading, "heading": heading}
        return HTMLResponse(render(f"{key}.html", **common, script=f"{key}.js", **values))

    @router.get("/")
    def first() -> HTMLResponse:
        return page("duel", "Duel") if len(served) > 1 else page("search", "Search")

    @router.get("/search")
    def search() -> HTMLResponse:
        return page("search", "Search")

    @router.get("/inside/{image}")
    def inside(image: int) -> HTMLResponse:
        return page("inside", "Inside an image", image=image)

    @router.get("/lists")
    def lists() -> HTMLResponse:
        return page("lists", "Lists")

    @router.get("/planes")
    def planes() -> HTMLResponse:
        return page("planes", "Planes")

    @router.get("/data")
    def data() -> HTMLResponse:
        return page("data", "Data")

    @router.get("/runs")
    def runs() -> HTMLResponse:
        return page("runs", "Runs")

    @router.get("/about")
    def about() -> HTMLResponse:
        return page("about", "About")

    @router.get("/part/progress")
    def progress() -> HTMLResponse:
        values = {"ready": state.ready, "failed": state.failed, "progress": state.progress, "poll": _POLL_SECONDS}
        return HTMLResponse(render("progress_now.html", **values))

    @router.get("/part/data")
    async def queues() -> HTMLResponse:
        """List the queues with their counts, and ask again while a count is not known."""
        values: dict[str, Any] = {"queues": [], "waiting": False, "message": ""}
        try:
            values["queues"] = (await state.worker.run(state.queues.all))["queues"]
            values["waiting"] = any(queue["progress"] for queue in values["queues"])
        except Refused as refused:
            values |= {"message": refused.message, "waiting": refused.retry_after is not None}
        return HTMLResponse(render("data_queues.html", poll=_POLL_SECONDS, **values))

    @router.get("/part/data/{name}")
    async def queue(name: str, offset: Annotated[int, Query(ge=0)] = 0) -> HTMLResponse:
        """Show a page of a queue, or a sentence on why there is none yet."""
        values: dict[str, Any] = {"name": name, "offset": offset, "limit": _ITEMS, "message": "", "poll": _POLL_SECONDS}
        try:
            values |= await state.worker.run(state.queues.page, name, offset, _ITEMS)
            described = (await state.worker.run(state.queues.all))["queues"]
            values["about"] = next(entry["about"] for entry in described if entry["name"] == name)
        except Refused as refused:
            values |= {"message": refused.message, "waiting": refused.retry_after is not None}
        return HTMLResponse(render("data_items.html", **values))

    @router.get("/assets/{name}")
    def asset(name: str, request: Request) -> Response:
        if name not in _assets():
            return PlainTextResponse("there is no such file", 404)
        content, kind, tag = _assets()[name]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}  # kept, but asked for anew: a new version is seen at once
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return router
