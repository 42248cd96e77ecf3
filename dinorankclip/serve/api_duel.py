"""Routes of duels: two models on one query, and on all queries of the set."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from dinorankclip.serve.answers import Refused
from dinorankclip.serve.state import ServedState

K = 10
MOST_QUERIES = 200  # of one page of queries
Way = Annotated[Literal["t2i", "i2t"], Query(description="t2i: captions find images; i2t: images find captions")]


def duel_router(state: ServedState) -> APIRouter:
    router = APIRouter(prefix="/api/duel", tags=["duel"])

    @router.get("")
    async def duel(
        q: str | None = None, caption: int | None = None, image: int | None = None, k: int = K
    ) -> dict[str, Any]:
        """Answer one query by both models: words `q`, a `caption` of the set, or an `image` of it. Ranks begin at 1."""
        k = state.items(k)
        if sum(asked is not None for asked in (q, caption, image)) != 1:
            raise Refused(422, "give one of q (words), caption (its index) and image (its index)")
        if q is not None:
            return await state.worker.run(state.duel.by_words, state.words(q), k)
        if caption is not None:
            return await state.worker.run(state.duel.by_caption, caption, k)
        return await state.worker.run(state.duel.by_image, image, k)

    @router.get("/summary")
    async def summary(direction: Way = "t2i") -> dict[str, Any]:
        """Compare both models over the set: recalls, paired differences b - a with 95 % intervals, won and lost."""
        return await state.worker.run(state.duel.summary, direction)

    @router.get("/queries")
    async def queries(
        outcome: Literal["won", "lost", "all"] = "all",
        direction: Way = "t2i",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_QUERIES)] = 50,
    ) -> dict[str, Any]:
        """List queries by the change of their rank, the largest first; won: model b ranks the right item higher."""
        return await state.worker.run(state.duel.queries, outcome, direction, offset, limit)

    return router
