"""The text side of an exported folder: the vocabulary itself, and how captions become ids.

Captions are read with the vocabulary that open_clip brings; an exported folder carries a copy for other programs,
and its hash proves that both are the same.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import TextSpec, UserError

DESCRIPTION = "vocabulary.json"


def write_vocabulary(folder: Path, spec: TextSpec) -> None:
    """Copy the byte pairs and describe how they are used."""
    source, tokenizer = _bundled(), Tokenizer(spec)
    shutil.copyfile(source, folder / source.name)
    start, end = tokenizer.encode("")
    described = {
        "kind": "CLIP byte-pair encoding",
        "file": source.name,
        "sha256": _hash(source),
        "cleaning": "ftfy, HTML entities resolved twice, white space joined, lower case",
        "context_length": spec.context_length,
        "ids": {"start": start, "end": end, "padding": 0, "vocabulary": tokenizer.vocabulary},
        "layout": "start, ids of the caption, end, padding; a longer caption loses its last ids",
    }
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=2) + "\n")


def check_vocabulary(folder: Path) -> None:
    """An exported folder must have been made with the vocabulary that is installed; other folders say nothing of it."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return
    try:
        described: Any = json.loads(path.read_text())
        wanted = described["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from error
    if wanted != _hash(_bundled()):
        raise UserError(
            f"{folder} was made with another vocabulary than the installed open_clip_torch has: captions would be "
            "misread; install the version that made it (provenance.json)"
        )


def _bundled() -> Path:
    from dinorankclip import torchvision_ops

    torchvision_ops.declare_missing()
    from open_clip.tokenizer import default_bpe

    return Path(default_bpe())


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
