"""A model that is loaded only when a question needs it.

What was learnt when it was last loaded is kept beside the photo indexes: its identity, and whether its captions can
be read in NumPy. A model is recognised by the size and time of every file it may be made of. Training on, exporting
over it or touching a file makes it unknown: it is then loaded once, which is slow but never wrong.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip import __version__
from dinorankclip.data.folders import sizes_and_times
from dinorankclip.digests import digest
from dinorankclip.run_files import CHECKPOINTS, LAST
from dinorankclip.whole_files import write_json

FILE = "models.json"
MOST = 100  # models remembered
_OPEN_CLIP = "open_clip:"


@dataclass(frozen=True)
class Known:
    identity: str
    quick: str | None  # the folder from which its captions may be read in NumPy


class ModelOnDemand:
    """The model that `load()` gives and the user calls `name`; `folder` is where to remember it."""

    def __init__(self, name: str, load: Callable[[], Any], folder: Path) -> None:
        self._name, self._load, self._folder = name, load, folder
        self._known = _recall(folder, stamp(name))
        self._loaded: Any = None
        self._quick: Callable[[str], np.ndarray] | None = None

    def loaded(self) -> Any:
        if self._loaded is None:
            seen = stamp(self._name)  # before loading: what is written meanwhile must not pass for what was loaded
            self._loaded = self._load()
            self._known = Known(self._loaded.identity, _quick_folder(self._name, self._loaded))
            if seen is not None:
                _remember(self._folder, seen, self._known)
        return self._loaded

    @property
    def identity(self) -> str:
        return self._known.identity if self._known is not None else self.loaded().identity

    def read(self, words: str) -> np.ndarray:
        """Words → fp32 [D], of length 1."""
        if self._loaded is None and self._known is not None and self._known.quick is not None:
            if self._quick is None:
                from dinorankclip.serving.quick_text import QuickText

                self._quick = QuickText(Path(self._known.quick))
            return self._quick(words)
        return self.loaded().encode_text([words])[0].cpu().numpy()

    def see(self, image: bytes) -> np.ndarray:
        """An encoded image → fp32 [D], of length 1."""
        model = self.loaded()
        return model.encode_image(model.preprocess(image)[None])[0].cpu().numpy()


def stamp(model: str) -> str | None:
    """A name for a model as it is on disk now; None if nothing there stands behind it."""
    if model.startswith(_OPEN_CLIP):
        name = model.removeprefix(_OPEN_CLIP)
        places = [Path(name), Path(name.partition(":")[2] or name)]
    else:
        places = [Path(model), Path(model, CHECKPOINTS, LAST), Path(model, LAST)]
    files: list[Path] = []
    for place in (place.resolve() for place in places if place.exists()):
        files += sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    return digest(__version__, model, *files, sizes_and_times(files).tobytes()) if files else None


def _quick_folder(name: str, model: Any) -> str | None:
    if name.startswith(_OPEN_CLIP):
        return None
    from dinorankclip.joint.folder import find_model
    from dinorankclip.serving.quick_text import agrees

    folder = find_model(name)
    return str(folder) if agrees(folder, model) else None


def _recall(folder: Path, seen: str | None) -> Known | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return Known(**json.loads((folder / FILE).read_text())[seen])
    return None


def _remember(folder: Path, seen: str, known: Known) -> None:
    """Add to the table; if it cannot be read or written, the next process has to load the model again."""
    table: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        table = json.loads((folder / FILE).read_text())
    table = dict(list((table | {seen: asdict(known)}).items())[-MOST:])
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, table)
