"""Routes of doubtful data and of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from dinorankclip.serve.answers import Refused, SafeJSON
from dinorankclip.serve.runs import Runs
from dinorankclip.serve.state import ServedState

MOST_ITEMS = 200  # of one page of a queue
LOOK_EVERY = 1.0  # seconds between two looks at the runs
STREAMS = 16  # open streams of events


class Keys(BaseModel):
    keys: list[str]


def data_router(state: ServedState) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["data"])
    runs, streams = Runs(state.runs), asyncio.Semaphore(STREAMS)

    @router.get("/data")
    async def queues() -> dict[str, Any]:
        """Describe the queues of doubtful items. A count is null while its queue is being made."""
        return await state.worker.run(state.queues.all)

    @router.get("/data/{name}")
    async def queue(
        name: str,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 50,
    ) -> dict[str, Any]:
        """Return items of a queue."""
        return await state.worker.run(state.queues.page, name, offset, limit)

    @router.post("/data/export", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def export(asked: Annotated[Keys, Body()]) -> Response:
        """Return keys as a file with one key a line."""
        text = await state.worker.run(state.queues.export, asked.keys)
        headers = {"Content-Disposition": 'attachment; filename="keys.txt"'}
        return Response(text, media_type="text/plain; charset=utf-8", headers=headers)

    @router.get("/runs")
    async def all_runs() -> list[dict[str, Any]]:
        """List the runs of the runs folder, the latest first."""
        return await state.worker.run(runs.all)

    @router.get(
        "/runs/events", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}}
    )
    async def events(request: Request) -> StreamingResponse:
        """Send an event `run` with the summary of every run, and again whenever a run has logged."""
        if streams.locked():
            raise Refused(503, f"{STREAMS} pages follow the runs already; close one", 5)

        async def lines() -> AsyncIterator[str]:
            known: dict[str, tuple[float, str]] = {}
            async with streams:
                while not state.stopping.is_set() and not await request.is_disconnected():
                    changed = await asyncio.to_thread(runs.changed, known)
                    for summary in changed:
                        yield f"event: run\ndata: {str(SafeJSON(summary).body, 'ascii')}\n\n"
                    if not changed:
                        yield ": nothing new\n\n"
                    await asyncio.sleep(LOOK_EVERY)

        return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @router.get("/runs/{id}/curves")
    async def curves(id: str) -> dict[str, Any]:
        """Return all logged numbers of a run by name: pairs of step and value."""
        return await state.worker.run(runs.curves, id)

    return router
