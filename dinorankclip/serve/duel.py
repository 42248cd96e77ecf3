"""Compares two models: on one query, and on all captions or images of the set.

The difference over the set is paired, query by query, with the intervals of evaluate/intervals.py, as `compare` takes
them. A query is *won* if model b ranks its best right item higher than model a does, and *lost* if lower.

Shapes: Q queries, U usable images, T captions, D embedding width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from dinorankclip.evaluate.intervals import Difference, compare
from dinorankclip.evaluate.retrieval import KS, RightItems, ranks
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.long_work import Advance, LongWork
from dinorankclip.serve.nearest import nearest, ranks_of

if TYPE_CHECKING:
    from dinorankclip.serve.state import ServedState

Direction = Literal["t2i", "i2t"]
MOST_SIMILARITIES = 2_000_000_000  # of all queries with all items; larger sets are compared on queries drawn by a seed
TWO = "a duel needs two models: dinorankclip explore A B --data …"
NO_PAIRS = "images of this set have no captions, so no answer is known to be right: use --data with pairs"
_QUERIES: dict[Direction, str] = {"t2i": "captions", "i2t": "images"}


@dataclass(frozen=True)
class Ranks:
    """Holds the rank (from 0) of each query's best right item by both models, int64 [Q]."""

    queries: np.ndarray  # captions, or rows of images: int64 [Q]
    a: np.ndarray
    b: np.ndarray
    clusters: np.ndarray  # number of the query's image, the same for images with the same captions

    def change(self) -> np.ndarray:
        """Return log((1 + rank a) / (1 + rank b)) of each query: positive where b is better."""
        return np.log((1.0 + self.a) / (1.0 + self.b))


class Duel:
    def __init__(self, state: ServedState) -> None:
        self._state = state
        self._works = {
            direction: LongWork(state, f"comparing both models on all {queries}", partial(self._ranks, direction))
            for direction, queries in _QUERIES.items()
        }

    # --- one query

    def by_words(self, words: str, k: int) -> dict[str, Any]:
        self._demand(pairs=False)
        queries = {id: model.embed_words(words) for id, model in self._state.models.items()}
        return {"query": {"text": words, "kind": "words", "right": []}} | self._images(queries, None, k)

    def by_caption(self, caption: int, k: int) -> dict[str, Any]:
        """Answer a caption of the set, whose right images are known."""
        self._demand()
        collection = self._state.collection
        text = self.caption(caption)
        right = sorted(collection.right.images.of(caption))
        queries = {id: rows.texts[caption] for id, rows in self._state.rows.items()}
        query = {"text": text, "kind": "caption", "right": collection.usable[right].tolist(), "index": caption}
        return {"query": query} | self._images(queries, right, k)

    def by_image(self, image: int, k: int) -> dict[str, Any]:
        """Answer an image of the set with captions."""
        self._demand()
        collection, row = self._state.collection, self._state.collection.row(image)
        right = sorted(collection.right.texts.of(row))
        scores = {id: rows.texts @ rows.images[row] for id, rows in self._state.rows.items()}
        query = {"text": collection.first_caption(row), "kind": "image", "right": right, "index": image}
        texts, owners = collection.texts, collection.usable[collection.owner]

        def item(place: int) -> dict[str, Any]:
            return {"index": place, "text": texts[place], "image": int(owners[place])}

        return {"query": query, "items_are": "captions"} | _beside(scores, right, k, item)

    def caption(self, index: int) -> str:
        texts = self._state.collection.texts
        if not 0 <= index < len(texts):
            raise Refused(404, f"there is no caption {index}: this set has captions 0 to {len(texts) - 1}")
        return texts[index]

    def _images(self, queries: dict[str, np.ndarray], right: list[int] | None, k: int) -> dict[str, Any]:
        collection = self._state.collection
        scores = {id: rows.images @ queries[id] for id, rows in self._state.rows.items()}

        def item(place: int) -> dict[str, Any]:
            return {"index": int(collection.usable[place]), "caption": collection.first_caption(place)}

        return {"items_are": "images"} | _beside(scores, right, k, item)

    def _demand(self, pairs: bool = True) -> None:
        if len(self._state.models) < 2:
            raise Refused(409, TWO)
        self._state.demand_ready()
        if pairs and not self._state.collection.known_pairs:
            raise Refused(409, NO_PAIRS)

    # --- all queries

    def ranks(self, direction: Direction) -> Ranks:
        """Return the ranks of all queries of a direction, computed once; a large set takes a minute."""
        self._demand()
        return self._works[direction].result()

    def _ranks(self, direction: Direction, advance: Advance) -> Ranks:
        collection = self._state.collection
        of_texts = direction == "t2i"
        right = collection.right.images if of_texts else collection.right.texts
        gallery = len(collection.usable) if of_texts else len(collection.texts)
        queries = np.arange(len(right))
        most = max(1, MOST_SIMILARITIES // gallery)
        if len(queries) > most:
            queries = np.sort(np.random.default_rng(0).permutation(len(queries))[:most])
            right = some_queries(right, queries)
        found, done = {}, 0

        def count(asked: int) -> None:
            nonlocal done
            done += asked
            advance(done // 2, len(queries))  # each of them is asked twice

        for id, rows in self._state.rows.items():
            asked, items = (rows.texts, rows.images) if of_texts else (rows.images, rows.texts)
            asked = asked if len(queries) == len(asked) else asked[queries]
            found[id] = ranks(torch.from_numpy(asked), torch.from_numpy(items), right, advance=count).numpy()
        images = collection.owner[queries] if of_texts else queries
        return Ranks(queries, found["a"], found["b"], collection.alike[images])

    def summary(self, direction: Direction) -> dict[str, Any]:
        """Return recalls of both models with paired differences b - a, and how many queries were won and lost."""
        found = self.ranks(direction)
        scores, differences = {}, {}
        for k in KS:
            a, b = (side < k for side in (found.a, found.b))
            difference = compare(a, b, found.clusters)
            differences[k] = difference
            scores[f"R@{k}"] = {
                "a": float(a.mean()),
                "b": float(b.mean()),
                "difference": difference.mean,
                "low": difference.low,
                "high": difference.high,
                "verdict": difference.verdict,
            }
        of = self._queries_in_all(direction)
        drawn = "" if of == len(found.queries) else f" Measured on {len(found.queries):,} of {of:,} queries."
        return {
            "n": len(found.queries),
            "direction": direction,
            "scores": scores,
            "won": int((found.b < found.a).sum()),
            "lost": int((found.b > found.a).sum()),
            "tied": int((found.b == found.a).sum()),
            "median_rank": {"a": float(np.median(found.a)) + 1, "b": float(np.median(found.b)) + 1},
            "words": verdict_words(differences[1], _QUERIES[direction]) + drawn,
        }

    def _queries_in_all(self, direction: Direction) -> int:
        collection = self._state.collection
        return len(collection.texts) if direction == "t2i" else len(collection.usable)

    def queries(self, outcome: str, direction: Direction, offset: int, limit: int) -> dict[str, Any]:
        """Return queries that were won or lost, those whose rank changed most (on a log scale) first."""
        found, collection = self.ranks(direction), self._state.collection
        change = found.change()
        chosen = np.flatnonzero({"won": change > 0, "lost": change < 0, "all": np.ones(len(change), bool)}[outcome])
        chosen = chosen[np.lexsort((chosen, -np.abs(change[chosen])))]
        items = []
        for at in chosen[offset : offset + limit]:
            query = int(found.queries[at])
            text = collection.texts[query] if direction == "t2i" else collection.first_caption(query)
            index = query if direction == "t2i" else int(collection.usable[query])
            items.append({"query": index, "text": text, "rank_a": int(found.a[at]) + 1, "rank_b": int(found.b[at]) + 1})
        return {"total": len(chosen), "items": items}


def some_queries(right: RightItems, queries: np.ndarray) -> RightItems:
    """Return the right items of some queries [Q], in their order."""
    ends = right.ends
    pieces = [right.ids[ends[q] : ends[q + 1]] for q in queries.tolist()]
    sizes = torch.tensor([0, *(len(piece) for piece in pieces)])
    return RightItems(torch.cat(pieces), sizes.cumsum(0), right.items, right.item_ends)


def _beside(scores: dict[str, np.ndarray], right: list[int] | None, k: int, item: Any) -> dict[str, Any]:
    """Return the first k items of both models with their ranks by the other, and what the two have in common."""
    first = {id: nearest(values, k) for id, values in scores.items()}
    answer: dict[str, Any] = {}
    for id, other in (("a", "b"), ("b", "a")):
        there = ranks_of(scores[other], first[id])
        answer[id] = [
            item(int(place))
            | {
                "rank": rank,
                "score": float(scores[id][place]),
                "right": None if right is None else int(place) in right,
                "rank_other": elsewhere,
            }
            for rank, (place, elsewhere) in enumerate(zip(first[id], there), 1)
        ]
    of_b = {entry["index"]: entry["rank"] for entry in answer["b"]}
    answer["common"] = [
        {"index": entry["index"], "rank_a": entry["rank"], "rank_b": of_b[entry["index"]]}
        for entry in answer["a"]
        if entry["index"] in of_b
    ]
    answer["overlap"] = len(answer["common"]) / len(first["a"])
    places = None if right is None else np.array(right)
    answer["right_rank"] = None if places is None else {id: min(ranks_of(scores[id], places)) for id in ("a", "b")}
    return answer


def verdict_words(difference: Difference, queries: str) -> str:
    """Return a sentence about R@1 of model b minus that of model a."""
    mean, low, high = (
        f"{100 * value:+.1f}".replace("-", "−") for value in (difference.mean, difference.low, difference.high)
    )
    points = f"{mean} points of R@1 ({low} to {high})"
    if difference.verdict == "higher":
        return f"B finds more: {points} over {difference.n:,} {queries}, more than chance explains."
    if difference.verdict == "lower":
        return f"B finds less: {points} over {difference.n:,} {queries}, more than chance explains."
    could = difference.detectable
    reach = f"; these {queries} would show a difference of {100 * could:.1f}" if 0 < could < math.inf else ""
    return f"No difference shown: {points} over {difference.n:,} {queries}{reach}."
