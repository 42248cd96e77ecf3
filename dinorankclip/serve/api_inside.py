"""Routes of one image's tokens, of lists, and of planes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field

from dinorankclip.methods import HIGHEST_ORDER
from dinorankclip.serve.lists import From, Lists
from dinorankclip.serve.planes import Planes
from dinorankclip.serve.state import ServedState
from dinorankclip.serve.tokens import Inside

MOST_POINTS = 10_000


class ListAsked(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    model: str = "a"
    by: From = Field("image", alias="from")
    anchor: int
    items: list[int]
    order: Annotated[int, Field(ge=0, le=HIGHEST_ORDER)] = 1


def inside_router(state: ServedState) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["inside"])
    inside, lists, planes = Inside(state), Lists(state), Planes(state)

    @router.get("/inside/{image}")
    async def about(image: int, model: str = "a") -> dict[str, Any]:
        """Return PCA colours of an image's patch tokens by source, and gate and angle of the fusion."""
        return await state.worker.run(inside.about, model, image)

    @router.get("/inside/{image}/patch")
    async def patch(image: int, patch: int, source: str = "trunk", model: str = "a") -> dict[str, Any]:
        """Return the cosines of one patch with all patches, row by row."""
        return await state.worker.run(inside.patch, model, image, source, patch)

    @router.get("/inside/{image}/words")
    async def words(image: int, q: str, model: str = "a") -> dict[str, Any]:
        """Return the cosines of words with all patches, row by row."""
        return await state.worker.run(inside.words, model, image, state.words(q))

    @router.post("/lists")
    async def the_list(asked: Annotated[ListAsked, Body()]) -> dict[str, Any]:
        """Describe a list in the Plackett–Luce model of an order: utilities, transitions, probabilities, likelihood."""
        return await state.worker.run(lists.answer, asked.model, asked.by, asked.anchor, asked.items, asked.order)

    @router.get("/plane")
    async def plane(
        kind: Literal["pca", "umap"] = "pca", rows: Annotated[int, Query(ge=3, le=MOST_POINTS)] = 3000
    ) -> dict[str, Any]:
        """Return the images of the set in two dimensions, by each model; a large set is sampled by a fixed seed."""
        return await state.worker.run(planes.answer, kind, rows)

    return router
