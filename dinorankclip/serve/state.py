"""Holds everything that is served: models, the set with its rows, limits, the token, and how far preparation is.

`prepare` embeds the set, in a thread of its own when a server runs. Until it is done, `ready` is false and requests for
results are answered with 503 and the progress in words.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.search.photo_search import stamp
from dinorankclip.serve.answers import Refused, Stopped
from dinorankclip.serve.collection import Collection, Rows
from dinorankclip.serve.long_work import Advance
from dinorankclip.serve.served_model import ServedModel
from dinorankclip.serve.worker import Worker
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.serve.duel import Duel
    from dinorankclip.serve.queues import Queues

TOKEN_BYTES = 24


@dataclass(frozen=True)
class Limits:
    upload_bytes: int = 16_000_000
    uploads_at_once: int = 8  # photos in memory
    pixels: int = 40_000_000
    most_items: int = 100  # of an answer, k
    query_characters: int = 2000
    texts_at_once: int = 256
    threads: int = 2  # of heavy work
    waiting: int = 512  # requests that may wait for them


class ServedState:
    def __init__(
        self,
        models: Sequence[ServedModel],
        collection: Collection,
        *,
        token: str | None = None,
        limits: Limits | None = None,
        runs: Path = Path("runs"),
        host: str = "127.0.0.1",
        port: int = 0,
        store: EmbeddingStore | None = None,
    ) -> None:
        self.models = {model.id: model for model in models}
        self.collection, self.runs, self.host, self.port = collection, runs, host, port
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self.limits = limits or Limits()
        self.rows: dict[str, Rows] = {}
        self.ready, self.failed = False, ""
        self.progress: dict[str, Any] | None = {"what": "starting", "done": 0, "total": 0}
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.worker = Worker(self.limits.threads, self.limits.waiting, "work")
        self.picture_worker = Worker(2, 2 * self.limits.waiting, "pictures")
        self._store = store or EmbeddingStore()

    @property
    def cookie(self) -> str:
        """Return the name of the cookie; browsers share cookies between ports, so it names the port."""
        return f"dinorankclip_{self.port}"

    # --- preparation

    def prepare(self) -> None:
        """Embed the set by every model. A failure is kept in words, and every later request gets them."""
        try:
            self._refuse_changed_models()
            embedded = {
                id: self.collection.embed_images(model.loaded, model.name, self._store, self._advance(model, "images"))
                for id, model in self.models.items()
            }
            self.collection.use([each.causes for each in embedded.values()])
            for id, model in self.models.items():
                texts = self.collection.embed_texts(model.loaded, self._store, self._advance(model, "captions"))
                self.rows[id] = self.collection.rows(embedded[id], texts)
            if len(self.models) > 1 and self.collection.known_pairs:
                _ = self.collection.right  # seconds for a large set, so not at the first duel
            self.progress, self.ready = None, True
        except Stopped:
            pass
        except (UserError, OSError) as error:
            self.failed = str(error)
        except BaseException as error:
            self.failed = f"the set could not be embedded: {type(error).__name__}; the terminal has more"
            raise

    def _refuse_changed_models(self) -> None:
        """Refuse a model whose files changed while it was loaded: its rows would be stored under the new name."""
        for model in self.models.values() if self.collection.photos is not None else ():
            if model.stamp is not None and stamp(model.name) != model.stamp:
                raise UserError(f"{model.name} has changed since it was loaded; start again")

    def _advance(self, model: ServedModel, kind: str) -> Advance:
        what = f"embedding {kind}" + (f" with model {model.id.upper()}" if len(self.models) > 1 else "")
        self.progress = {"what": what, "done": 0, "total": len(self.collection) if kind == "images" else 0}

        def advance(done: int, total: int) -> None:
            self.progress = {"what": what, "done": done, "total": total}
            if self.stopping.is_set():
                raise Stopped

        return advance

    def health(self) -> dict[str, Any]:
        status = {"status": "failed" if self.failed else "ok", "ready": self.ready, "progress": self.progress}
        return status | ({"message": self.failed} if self.failed else {})

    def demand_ready(self) -> None:
        if self.failed:
            raise Refused(503, self.failed)
        if not self.ready:
            progress = self.progress or {"what": "starting", "done": 0, "total": 0}
            counted = f": {progress['done']} of {progress['total']}" if progress["total"] else ""
            raise Refused(503, f"{progress['what']}{counted}; ask again in a moment", 1)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run long work in a thread of its own, which `stop` ends."""
        thread = threading.Thread(target=function, args=arguments, daemon=True, name=function.__name__)
        self._threads.append(thread)
        thread.start()

    def all_ended(self, patience: float) -> bool:
        """Wait for the threads of long work; return whether all of them have ended."""
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self.stopping.set()
        self.worker.close()
        self.picture_worker.close()

    # --- what requests name

    def model(self, id: str) -> ServedModel:
        if id not in self.models:
            raise Refused(404, f"there is no model '{id}', only {' and '.join(self.models)}")
        return self.models[id]

    def rows_of(self, id: str) -> Rows:
        self.model(id)
        self.demand_ready()
        return self.rows[id]

    def words(self, text: str) -> str:
        """Return a query in words, cleaned, or refuse it."""
        text = text.strip().encode("utf-8", "replace").decode("utf-8")
        if not text:
            raise Refused(422, "an empty query: say in words what to look for")
        if len(text) > self.limits.query_characters:
            raise Refused(422, f"a query has at most {self.limits.query_characters:,} characters, not {len(text):,}")
        return text

    def items(self, k: int) -> int:
        if not 1 <= k <= self.limits.most_items:
            raise Refused(422, f"k is between 1 and {self.limits.most_items}, not {k}")
        return k

    @functools.cached_property
    def duel(self) -> Duel:
        from dinorankclip.serve.duel import Duel

        return Duel(self)

    @functools.cached_property
    def queues(self) -> Queues:
        from dinorankclip.serve.queues import Queues

        return Queues(self)
