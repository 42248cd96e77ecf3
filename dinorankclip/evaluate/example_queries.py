"""Stores what a few held-out queries find, at the first and at the last validation of a run: examples.json.

`train` calls `note_examples` whenever it has embedded the validation part, so the report can show before and after on
the same captions and images without a model. Queries are drawn by a fixed seed: all runs on the same data have the same
ones, and nobody chooses them by their results. The file holds captions and positions in the data, no pixels:

    {"part": "val", "fingerprint": …, "images": N, "captions": T,
     "first": {"step": 100, "by_text": [...], "by_image": [...]}, "last": {…}}

An entry of by_text: {"caption", "image": its own image, "place", "found": [[image, right], …]}. An entry of by_image:
{"image", "caption": one of its own, "place", "found": [[caption, right], …]}. Images are positions in the source,
places are ranks of the best right item from 0. A validation that is repeated after a kill
replaces its earlier result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dinorankclip.checksums import read_sealed, sealed
from dinorankclip.evaluate.retrieval import RightItems, right_items
from dinorankclip.io import write_json
from dinorankclip.json_shape import COUNT, FLAG, TEXT, Shape, entries, kind, listed
from dinorankclip.run_files import EXAMPLES
from dinorankclip.seeds import named_seed
from dinorankclip.types import Source, UserError

BY_TEXT, BY_IMAGE = 24, 12  # queries of each kind
SHOWN = 5  # items that are stored for each query


def _found(item: Shape) -> Shape:
    pair = kind(
        "an item with true or false",
        lambda value: (
            isinstance(value, list)
            and len(value) == 2
            and not item.fault(value[0], "item")
            and not FLAG.fault(value[1], "mark")
        ),
    )
    return listed(pair, most=100)


def _queries(item: Shape) -> Shape:
    names = ("caption", "image", "place", "found")
    query = entries({"caption": TEXT, "image": COUNT, "place": COUNT, "found": _found(item)}, required=names)
    return listed(query, most=1000)


_MOMENT = entries(
    {"step": COUNT, "by_text": _queries(COUNT), "by_image": _queries(TEXT)}, required=("step", "by_text", "by_image")
)
_SHAPE = entries(
    {"part": TEXT, "fingerprint": TEXT, "images": COUNT, "captions": COUNT, "first": _MOMENT, "last": _MOMENT},
    required=("part", "fingerprint", "images", "captions", "first", "last"),
)


def read_examples(run: Path) -> dict[str, Any]:
    """Return the contents of examples.json; empty if there is no such file. Raises `UserError` if it is damaged."""
    return read_sealed(run / EXAMPLES, _SHAPE) if (run / EXAMPLES).is_file() else {}


def note_examples(
    run: Path,
    step: int,
    part: str,
    source: Source,
    indices: Sequence[int],
    captions: Sequence[Sequence[str]],
    images: Tensor,
    rows: Tensor,
) -> None:
    """Store what the drawn queries find at this step, beside the earliest result of the run on the same items.

    `images` [N, D] are unit-norm rows of the source's items `indices`, `captions` their captions, and `rows` [T, D] the
    rows of all captions in image order.
    """
    moment = {"step": step, **_results(indices, captions, images, rows)}
    about = {"part": part, "fingerprint": source.fingerprint, "images": len(images), "captions": len(rows)}
    try:
        earlier = read_examples(run)
    except UserError:
        earlier = {}  # damaged: written anew
    same_items = all(earlier.get(name) == value for name, value in about.items())
    first = earlier["first"] if same_items and earlier["first"]["step"] < step else moment
    write_json(run / EXAMPLES, sealed(about | {"first": first, "last": moment}))


def _results(
    indices: Sequence[int], captions: Sequence[Sequence[str]], images: Tensor, rows: Tensor
) -> dict[str, list[dict[str, Any]]]:
    texts, right = right_items(captions)
    image_of = np.repeat(np.arange(len(captions)), [len(group) for group in captions])
    draw = np.random.default_rng(named_seed(0, "example queries"))
    by_text = []
    for query in draw.permutation(len(texts))[:BY_TEXT].tolist():
        place, found = _nearest(rows[query] @ images.T, right.images, query)
        own = int(indices[int(image_of[query])])
        shown = [[int(indices[at]), mark] for at, mark in found]
        by_text.append({"caption": texts[query], "image": own, "place": place, "found": shown})
    by_image = []
    for query in draw.permutation(len(captions))[:BY_IMAGE].tolist():
        place, found = _nearest(images[query] @ rows.T, right.texts, query)
        read = [[texts[at], mark] for at, mark in found]
        asked = {"image": int(indices[query]), "caption": captions[query][0]}
        by_image.append(asked | {"place": place, "found": read})
    return {"by_text": by_text, "by_image": by_image}


def _nearest(similarity: Tensor, right: RightItems, query: int) -> tuple[int, list[tuple[int, bool]]]:
    """Return the place of the best right item, and the first items with their marks; ties are ordered by index."""
    order = similarity.sort(descending=True, stable=True).indices.tolist()
    wanted = right.of(query)
    place = next(at for at, item in enumerate(order) if item in wanted)
    return place, [(item, item in wanted) for item in order[:SHOWN]]
