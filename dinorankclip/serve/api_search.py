"""Routes of health, models, the set, its images, search and embeddings."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.data.decode import read_header
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.nearest import nearest
from dinorankclip.serve.pictures import Pictures
from dinorankclip.serve.state import ServedState

K = 12
PHOTO = {"requestBody": {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}, "required": True}}


class Texts(BaseModel):
    model: str = "a"
    texts: list[str]


def search_router(state: ServedState) -> APIRouter:
    router, collection = APIRouter(prefix="/api", tags=["search"]), state.collection
    pictures = Pictures(collection, max(state.limits.pixels, collection.reading.max_pixels))
    uploads = asyncio.Semaphore(state.limits.uploads_at_once)  # others wait before their bytes are read

    @router.get("/health")
    async def health() -> dict[str, Any]:
        """Tell whether the set is embedded, and how far that is."""
        return state.health()

    @router.get("/models")
    async def models() -> list[dict[str, Any]]:
        """Describe the models: what they are, have and lack."""

        def describe() -> list[dict[str, Any]]:
            return [
                model.about(len(state.rows[id].images) if id in state.rows else 0) for id, model in state.models.items()
            ]

        return await state.worker.run(describe)

    @router.get("/set")
    async def the_set() -> dict[str, Any]:
        """Describe the set of images."""
        return {
            "name": collection.name,
            "split": collection.split,
            "images": len(collection),
            "captions": len(collection.texts) if state.ready else 0,
            "known_pairs": collection.known_pairs,
            "damaged": len(collection.damaged()),
        }

    @router.get("/image/{index}", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
    async def image(index: int, size: int = 160) -> Response:
        """Return an image as JPEG; `size` bounds its longer side. X-Damaged: 1 marks the picture of a damaged image."""
        data, damaged = await state.picture_worker.run(pictures.get, index, size)
        headers = {"Cache-Control": "private, max-age=600"} | ({"X-Damaged": "1"} if damaged else {})
        return Response(data, media_type="image/jpeg", headers=headers)

    @router.get("/image/{index}/about")
    async def about(index: int) -> dict[str, Any]:
        """Return key, captions and size of an image."""
        size = await state.picture_worker.run(pictures.size, index)
        row = int(np.searchsorted(collection.usable, index))
        captions = collection.captions_at(index)
        first = int(np.searchsorted(collection.owner, row)) if captions else None
        return {
            "index": index,
            "key": collection.key(index),
            "captions": captions,
            "first_caption": first,
            "size": size,
            "damaged": size is None or bool(collection.cause(index)),
            "why": collection.cause(index) or None,
        }

    def found(model: str, query: str | None, row: np.ndarray, k: int, started: float) -> dict[str, Any]:
        rows = state.rows_of(model)
        scores = rows.images @ row
        note, standing = None, None
        if query is not None and rows.background is not None:
            level = rows.background.standing(scores)
            standing = {"level": level.level, "surpassed": level.surpassed, "of": level.of}
            note = None if level.stands_out else f"Nothing stands out: {level.words()}."
        items = [
            {
                "index": int(collection.usable[place]),
                "rank": rank,
                "score": float(scores[place]),
                "caption": collection.first_caption(int(place)),
            }
            for rank, place in enumerate(nearest(scores, k), 1)
        ]
        seconds = time.perf_counter() - started
        return {
            "query": query, "model": model, "items": items, "seconds": seconds, "note": note, "standing": standing
        }  # fmt: skip

    @router.get("/search")
    async def search(q: Annotated[str, Query(description="words")], model: str = "a", k: int = K) -> dict[str, Any]:
        """Find the images nearest to words."""
        words, k = state.words(q), state.items(k)
        state.rows_of(model)

        def work() -> dict[str, Any]:
            started = time.perf_counter()
            return found(model, words, state.model(model).embed_words(words), k, started)

        return await state.worker.run(work)

    @router.post("/search/photo", openapi_extra=PHOTO)
    async def search_by_photo(request: Request, model: str = "a", k: int = K) -> dict[str, Any]:
        """Find the images nearest to a photo, which is the body of the request."""
        k = state.items(k)
        state.rows_of(model)

        def work(data: bytes) -> dict[str, Any]:
            started = time.perf_counter()
            return found(model, None, state.model(model).embed_photo(data), k, started)

        async with uploads:
            return await state.worker.run(work, await uploaded(request, state))

    @router.post("/embed")
    async def embed(asked: Annotated[Texts, Body()]) -> dict[str, Any]:
        """Embed texts: rows of length 1."""
        if not 1 <= len(asked.texts) <= state.limits.texts_at_once:
            raise Refused(422, f"give between 1 and {state.limits.texts_at_once} texts, not {len(asked.texts)}")
        texts, model = [state.words(text) for text in asked.texts], state.model(asked.model)
        return {"rows": (await state.worker.run(model.embed_texts, texts)).tolist()}

    @router.post("/embed/photo", openapi_extra=PHOTO)
    async def embed_photo(request: Request, model: str = "a") -> dict[str, Any]:
        """Embed a photo, which is the body of the request: a row of length 1."""
        served = state.model(model)
        async with uploads:
            return {"row": (await state.worker.run(served.embed_photo, await uploaded(request, state))).tolist()}

    @router.get("/hub")
    async def hub(model: str = "a") -> dict[str, Any]:
        """Return the photo that comes first for most unrelated queries, and their share; of folders of photos only."""
        rows = state.rows_of(model)
        share = rows.background.hub_share if rows.background is not None else None
        return {"key": rows.hub, "share": share}

    return router


async def uploaded(request: Request, state: ServedState) -> bytes:
    """Return an uploaded photo whose header is that of an image of a bearable size."""
    data = await request.body()
    if not data:
        raise Refused(422, "the body of the request is empty: send the bytes of a photo")
    try:
        read_header(data, state.limits.pixels)
    except Damage as damage:
        if damage.cause == "too-many-pixels":
            raise Refused(413, f"a photo has at most {state.limits.pixels / 1e6:g} million pixels") from None
        raise Refused(422, f"this photo cannot be read: {CAUSES[damage.cause]}") from None
    return data
