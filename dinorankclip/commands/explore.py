"""`dinorankclip explore`: look inside one model or two, on pages of a local server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dinorankclip.commands.serve import load_served
from dinorankclip.config import FindingSettings
from dinorankclip.extras import demand_extra
from dinorankclip.types import UserError


def explore(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL]")],
    *,
    data: str | None = None,
    images: Path | None = None,
    split: Literal["train", "val", "test", "all"] | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    runs: Path = Path("runs"),
    device: str = "auto",
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Look inside one model, or at two beside each other, on pages of a server on this machine.

    Examples:
      dinorankclip explore runs/first runs/second --data scenes
      dinorankclip explore runs/first --data photos.csv --split val
      dinorankclip explore starter runs/mine --images photos

    Open the link that is printed; it has a token. Duel: one query by both models, and what differs over the whole set,
    with intervals. Further pages show an image's patches and gates, lists under every order, planes, doubtful data and
    runs. Nothing is loaded from elsewhere. Needs the extra serve: pip install 'dinorankclip[serve]'.

    Args:
        models: One or two of: a run, a checkpoint, an exported folder, open_clip:NAME:FILE,
            transformers:FOLDER, starter.
        data: Pairs, as --data of train.
        images: A folder of photos without captions, in place of --data.
        split: The part of --data; by default test, else val.
        host: The address to listen at. Another address than this machine's own needs a token of yours.
        port: The port; 8321 or, if that is taken, any free port. 0: any free port.
        token: At least 16 letters and digits in place of a random token; or DINORANKCLIP_TOKEN, which no list of
            processes shows.
        runs: The folder of runs whose curves are shown.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        reading: How the pairs are found and divided.
    """
    if not 1 <= len(models) <= 2:
        raise UserError(f"explore shows one model or two, not {len(models)}")
    if (data is None) == (images is None):
        raise UserError("give --data with pairs, or --images with a folder of photos")
    if images is not None and split is not None:
        raise UserError("--split is for --data; a folder of photos has no parts")
    demand_extra("serve", "dinorankclip explore")
    print(f"opening {data or images} …", file=sys.stderr, flush=True)  # torch takes a few seconds to import
    from dinorankclip.serve.run_server import checked_token, serve_models

    token = checked_token(host, token)
    from dinorankclip.serve.collection import open_data, open_photos

    collection = open_photos(images) if images is not None else open_data(str(data), split, reading, list(models))
    served = load_served(models, device)
    serve_models(served, collection, pages=True, host=host, port=port, token=token, runs=runs)
