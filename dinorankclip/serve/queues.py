"""Makes queues of doubtful items: damaged images, near-duplicates, captions that fit least, captions that are cut.

Damaged images and cosines are known when the set is embedded. Near-duplicates and cut captions take a look at every
image and caption: long_work.py runs it when a queue is first asked for, and answers say how far it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dinorankclip.data.damage import CAUSES
from dinorankclip.data.duplicates import groups_within, looks_of
from dinorankclip.data.row_store import CAUSE_NAMES
from dinorankclip.models.towers import TowerTokenizer
from dinorankclip.search.embed_collection import one_line
from dinorankclip.serve.answers import Refused, shown
from dinorankclip.serve.long_work import Advance, LongWork

if TYPE_CHECKING:
    from dinorankclip.serve.state import ServedState

LOWEST = 500  # captions in the queue of those that fit least
ROWS_AT_ONCE = 8192
SHOWN_LETTERS = 160
Item = dict[str, Any]


@dataclass(frozen=True)
class Queue:
    about: str
    make: Callable[[], list[Item]] | LongWork[list[Item]]
    pairs: bool = False  # needs captions


class Queues:
    def __init__(self, state: ServedState) -> None:
        self._state, self._lock = state, threading.Lock()
        self._quick: dict[str, list[Item]] = {}  # items of queues that are made at once
        self._queues = {
            "damaged": Queue("Images that cannot be read; searches and scores leave them out.", self._damaged),
            "near-duplicates": Queue(
                "Photos that look the same: copies, re-encoded or resized. A group has one number.",
                LongWork(state, "looking for photos that look the same", self._duplicates),
            ),
            "lowest-cosine": Queue(
                "Captions that fit their image least, by model A: perhaps they belong to another image.",
                self._lowest,
                pairs=True,
            ),
            "cut-captions": Queue(
                "Captions longer than model A reads; their ends are lost.",
                LongWork(state, "counting the tokens of captions", self._cut),
                pairs=True,
            ),
        }

    def all(self) -> dict[str, Any]:
        """Describe the queues; a count is null while it is not known."""
        self._state.demand_ready()
        listed = []
        for name, queue in self._queues.items():
            if queue.pairs and not self._state.collection.known_pairs:
                continue
            if isinstance(queue.make, LongWork):
                queue.make.begin()
                items, progress = queue.make.peek(), queue.make.progress
            else:
                items, progress = self._items(name), None
            described = {"name": name, "count": None if items is None else len(items), "about": queue.about}
            listed.append(described | {"progress": progress and dict(zip(("done", "total"), progress))})
        return {"queues": listed}

    def page(self, name: str, offset: int, limit: int) -> dict[str, Any]:
        items = self._items(name)
        return {"total": len(items), "items": items[offset : offset + limit]}

    def export(self, keys: Sequence[str]) -> bytes:
        """Return keys of the set as a text with one key a line, for a tool that takes them out of the data."""
        known = {self._state.collection.key(place): self._state.collection.source.key(place)
                 for place in range(len(self._state.collection))}  # fmt: skip
        unknown = [key for key in keys if key not in known]
        if unknown:
            raise Refused(404, f"{len(unknown)} of these keys are not in the set, the first is {unknown[0][:80]}")
        lines = "".join(one_line(known[key]) + "\n" for key in dict.fromkeys(keys))
        return lines.encode("utf-8", "surrogateescape")

    def _items(self, name: str) -> list[Item]:
        if name not in self._queues:
            raise Refused(404, f"there is no queue '{name}', only {', '.join(self._queues)}")
        queue = self._queues[name]
        self._state.demand_ready()
        if queue.pairs and not self._state.collection.known_pairs:
            raise Refused(409, "images of this set have no captions")
        if isinstance(queue.make, LongWork):
            return queue.make.result()
        with self._lock:
            if name not in self._quick:
                self._quick[name] = queue.make()
            return self._quick[name]

    # --- the queues themselves

    def _damaged(self) -> list[Item]:
        collection = self._state.collection
        found = []
        for place in collection.damaged():
            cause = CAUSE_NAMES[collection.causes[place]]
            found.append({"index": place, "key": collection.key(place), "why": CAUSES[cause], "cause": cause})
        return found

    def _duplicates(self, advance: Advance) -> list[Item]:
        collection, done = self._state.collection, 0

        def count(images: int) -> None:
            nonlocal done
            done += images
            advance(done, len(collection))

        looks = looks_of(collection.source, collection.reading.max_pixels, count)
        places = {collection.source.key(place): place for place in range(len(collection))}
        found = []
        for number, group in enumerate(groups_within(looks), 1):
            first = shown(looks.keys[group[0]])
            for at in group:
                key = looks.keys[at]
                why = f"looks like {first}" if at != group[0] else f"the first of {len(group)} that look the same"
                found.append({"index": places[key], "key": shown(key), "why": why, "group": number})
        return found

    def _lowest(self) -> list[Item]:
        """List the captions with the lowest cosine to their image, the lowest first."""
        rows, collection = self._state.rows["a"], self._state.collection
        cosines = np.empty(len(collection.texts), np.float32)
        for start in range(0, len(cosines), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            cosines[some] = (rows.texts[some] * rows.images[collection.owner[some]]).sum(1)
        found = []
        for caption in np.argsort(cosines, kind="stable")[:LOWEST].tolist():
            cosine = f"{cosines[caption]:.3f}".replace("-", "−")
            why = f"cosine {cosine} with “{_short(collection.texts[caption])}”"
            found.append(self._of_caption(caption, why))
        return found

    def _cut(self, advance: Advance) -> list[Item]:
        collection, found = self._state.collection, []
        tokenizer = self._state.models["a"].loaded.parts.tokenizer()  # of our own: its memory is not made for threads
        context = tokenizer.spec.context_length
        # A tower's tokenizer counts up to the context length, so a caption that fills it counts as cut.
        most = context - 1 if isinstance(tokenizer, TowerTokenizer) else context
        for caption, text in enumerate(collection.texts):
            if caption % 256 == 0:
                advance(caption, len(collection.texts))
            length = tokenizer.whole_length(text)
            if length > most:
                found.append(self._of_caption(caption, f"{length} of at most {context} tokens: “{_short(text)}”"))
        return found

    def _of_caption(self, caption: int, why: str) -> Item:
        collection = self._state.collection
        place = int(collection.usable[collection.owner[caption]])
        return {"index": place, "key": collection.key(place), "why": why, "caption": caption}


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"
