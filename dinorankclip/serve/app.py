"""Makes the application: routes, and errors as sentences. Nothing is loaded from elsewhere, the API's page included."""

from __future__ import annotations

import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dinorankclip import __version__
from dinorankclip.serve.answers import Refused, SafeJSON, error_response
from dinorankclip.serve.api_data import data_router
from dinorankclip.serve.api_duel import duel_router
from dinorankclip.serve.api_inside import inside_router
from dinorankclip.serve.api_search import search_router
from dinorankclip.serve.guard import Guard
from dinorankclip.serve.state import ServedState
from dinorankclip.types import UserError

ABOUT = "Search, embeddings, duels of two models, one image's tokens, lists, planes, data and runs. Ranks begin at 1."


def create_app(state: ServedState, pages: bool) -> FastAPI:
    """Return the application. `pages` adds the pages; without them the first page is a description of the API."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.stop()

    app = FastAPI(
        title="DinoRankCLIP",
        version=__version__,
        description=ABOUT,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        default_response_class=SafeJSON,
        lifespan=lifespan,
    )
    app.state.served = state
    for router in (search_router, duel_router, inside_router, data_router):
        app.include_router(router(state))
    answer = error_response
    if pages:
        from dinorankclip.serve.pages import page_error_response, pages_router

        app.include_router(pages_router(state))
        answer = page_error_response
    else:
        app.add_api_route("/", lambda: SafeJSON(_first_answer(app)), include_in_schema=False)
    _answer_errors(app, answer)
    app.add_middleware(
        Guard, token=state.token, cookie=state.cookie, host=state.host, upload_bytes=state.limits.upload_bytes
    )
    return app


def _first_answer(app: FastAPI) -> dict[str, Any]:
    """Return what a browser sees at the root of a server without pages: the routes in words."""
    schema = app.openapi()
    routes = {
        f"{method.upper()} {path}": about.get("description", about.get("summary", ""))
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
    }
    return {"title": schema["info"]["title"], "about": ABOUT, "openapi": "/api/openapi.json", "routes": routes}


def _answer_errors(app: FastAPI, answer: Callable[..., Response]) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return answer(request.url.path, error.status, error.message, error.retry_after)

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> Response:
        return answer(request.url.path, 409, str(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        words = {404: "there is nothing at this address", 405: "this address does not take that kind of request"}
        return answer(request.url.path, error.status_code, words.get(error.status_code, str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request.url.path, 422, _in_words(error))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        traceback.print_exception(error, file=sys.stderr)
        return answer(request.url.path, 500, "the server made a mistake; the terminal where it runs has more")


def _in_words(error: RequestValidationError) -> str:
    """Return what is wrong with a request: `k: Input should be a valid integer`."""
    parts = []
    for each in error.errors():
        place = ".".join(str(step) for step in each["loc"] if step not in ("query", "path", "body"))
        parts.append(f"{place}: {each['msg'].lower()}" if place else str(each["msg"]).lower())
    return "; ".join(parts)
