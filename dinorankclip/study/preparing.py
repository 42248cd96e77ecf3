"""What runs of a study share, made once: scenes before the workers start, teachers' features by the first worker that
needs them.

FOLDER/caches/NAME.json      of a cache that was made, or why it could not be
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dinorankclip.config import TrainSettings
from dinorankclip.digests import digest
from dinorankclip.dino.of_data import Wish
from dinorankclip.locks import one_at_a_time
from dinorankclip.methods import AUTO
from dinorankclip.pretrain.distilling import wish_of
from dinorankclip.whole_files import write_json

from .outline import Run, Scenes
from .queue import hold

CACHES = "caches"


def make_scenes(wanted: Scenes) -> None:
    from dinorankclip.data import scenes

    folder = Path(wanted.folder)
    counts = {"train": wanted.train, "val": wanted.val, "test": wanted.test} | dict(wanted.others)
    with one_at_a_time(folder.name, folder=folder.parent):
        scenes.make_scenes(folder, **counts)


def cache_wishes(runs: Iterable[Run]) -> dict[Wish, TrainSettings]:
    """Every cache that runs ask to be made, with settings of one of them."""
    found: dict[Wish, TrainSettings] = {}
    for run in runs:
        if run.settings.distil.cache == AUTO:
            found.setdefault(wish_of(run.settings), run.settings)
    return found


def name_of(wish: Wish) -> str:
    """Under which a study's folder holds and tells of a cache: made of the words for it, so they must stay."""
    return f"cache-{digest(str(wish))[:12]}"


def cache_is_ready(folder: Path, run: Run, make: Callable[[TrainSettings], object]) -> bool:
    """Whether the features that a run reads are there; they are made now unless somebody else is at it.

    Features that cannot be made count as ready: the run that wants them then fails with the same words.
    """
    for wish, settings in cache_wishes([run]).items():
        if told_of(folder, wish):
            continue
        taken = hold(folder, name_of(wish))
        if taken is None:
            return False
        try:
            if not told_of(folder, wish):
                begin = time.monotonic()  # of this attempt: a hold counts earlier ones, too
                came_of_it = _made(settings, make)
                tell(folder, wish, came_of_it | {"seconds": round(time.monotonic() - begin, 1)})
        finally:
            taken.release()
    return True


def _made(settings: TrainSettings, make: Callable[[TrainSettings], object]) -> dict[str, str]:
    try:
        make(settings)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def tell(folder: Path, wish: Wish, told: dict[str, object]) -> None:
    """Write down what came of a cache."""
    (folder / CACHES).mkdir(parents=True, exist_ok=True)
    write_json(folder / CACHES / f"{name_of(wish)}.json", {"cache": str(wish)} | told)


def told_of(folder: Path, wish: Wish) -> dict[str, Any] | None:
    """What came of a cache; None if it is not made yet."""
    path = folder / CACHES / f"{name_of(wish)}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def forget_caches(folder: Path) -> None:
    """Look at every cache again: one that is there is found at once."""
    for path in (folder / CACHES).glob("*.json"):
        path.unlink(missing_ok=True)
