"""`dinorankclip serve`: answer searches of a folder of photos over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dinorankclip.commands.shared import load_quietly
from dinorankclip.extras import demand_extra

if TYPE_CHECKING:
    from dinorankclip.serve.served_model import ServedModel


def serve(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    *,
    images: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    runs: Path = Path("runs"),
    device: str = "auto",
) -> None:
    """Answer searches of a folder of photos over HTTP. While it runs, `dinorankclip search` asks it.

    Examples:
      dinorankclip serve runs/first --images photos
      dinorankclip serve starter --images photos --port 9000
      DINORANKCLIP_TOKEN=… dinorankclip serve runs/first --images photos --host 0.0.0.0

    The link that is printed has a token, without which nothing is answered. Programs send it as
    `Authorization: Bearer TOKEN`; /api/openapi.json describes all routes. Photos are asked for by number, never by
    path. The index is that of `search`. Needs the extra serve: pip install 'dinorankclip[serve]'.

    Args:
        model: A run, a checkpoint, an exported folder, open_clip:NAME:FILE, transformers:FOLDER, or starter.
        images: The folder of photos, with all folders below it.
        host: The address to listen at. Another address than this machine's own needs a token of yours.
        port: The port; 8321 or, if that is taken, any free port. 0: any free port.
        token: At least 16 letters and digits in place of a random token; or DINORANKCLIP_TOKEN, which no list of
            processes shows.
        runs: The folder of runs whose curves are served.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
    """
    demand_extra("serve", "dinorankclip serve")
    print(f"opening {images} …", file=sys.stderr, flush=True)  # torch takes a few seconds to import
    from dinorankclip.serve.run_server import checked_token, serve_models

    token = checked_token(host, token)
    from dinorankclip.serve.collection import open_photos

    collection = open_photos(images)
    models = load_served([model], device)
    serve_models(models, collection, pages=False, host=host, port=port, token=token, runs=runs)


def load_served(names: Sequence[str], device: str) -> list[ServedModel]:
    """Load the models that are served, as "a" and "b"; their names tell files that are written meanwhile."""
    from dinorankclip.models.loaded import try_out
    from dinorankclip.search.photo_search import stamp
    from dinorankclip.serve.served_model import ServedModel

    models = []
    for id, name in zip("ab", names):
        print(f"loading {name} …", file=sys.stderr, flush=True)
        before = stamp(name)
        loaded = load_quietly(name, device)
        try_out(loaded)
        print(f"{id.upper()}: {name}, embeddings of {loaded.dim} numbers, {loaded.reason}", file=sys.stderr, flush=True)
        models.append(ServedModel(id, loaded, before))
    return models
