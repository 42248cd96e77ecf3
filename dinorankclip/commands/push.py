"""`dinorankclip push`: upload a model with its card to a hub, after the user asked for the network."""

from __future__ import annotations

import os
from typing import Annotated

import tyro

from dinorankclip.commands.export import Format
from dinorankclip.hub import ONLINE
from dinorankclip.hub import online as is_online
from dinorankclip.types import UserError


def push(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
    to: Format = "folder",
    private: bool = True,
    data_note: str = "",
    licence: str = "",
    message: str = "",
    online: bool = False,
) -> None:
    """Upload a model to a hub as OWNER/NAME: an export with its card, nothing else of this machine.

    Examples:
      dinorankclip push runs/first owner/first --online --licence apache-2.0
      dinorankclip push runs/first owner/first --online --to transformers --licence apache-2.0 --no-private

    The export is made anew in a temporary folder, and its files are listed before they are sent: weights, vocabulary,
    preprocessing, provenance without paths, and the card. Photos, captions, logs and checkpoints are never sent. The
    access token is that of huggingface_hub (HF_TOKEN, or `hf auth login`); this program neither reads nor stores it.

    Args:
        model: A run, a checkpoint, an exported folder, open_clip:NAME:FILE or transformers:FOLDER.
        name: The repository, which is made if it is not there.
        to: The format, as in export: one of them.
        private: Make a new repository private; --no-private makes it public.
        data_note: A sentence about the training data for the card, such as its source and terms.
        licence: The licence of the model. A public repository needs it.
        message: The message of the upload.
        online: Allow the network for this command; `dinorankclip --online push` is the same.
    """
    if online:
        os.environ[ONLINE] = "1"  # before any import of a library that can use the network
    if not is_online():
        raise UserError(f"push sends files over the network: dinorankclip push {model} {name} --online …")
    if not private and not licence:
        raise UserError("a public model needs terms: add --licence, such as --licence apache-2.0")
    from dinorankclip.models.push_model import push_model

    print(push_model(model, name, to, private, data_note, licence, message))
