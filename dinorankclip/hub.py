"""Decides whether hub libraries may use the network: only after `dinorankclip --online VERB …`.

Nothing else in this package opens a connection, `pipe:` data that a user types excepted. Set the environment before
the first import of open_clip, timm, transformers or huggingface_hub, which read it once.
"""

from __future__ import annotations

import os

ONLINE = "DINORANKCLIP_ONLINE"
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


def online() -> bool:
    """Return whether the user asked for downloads, by the flag or by the environment variable behind it."""
    return os.environ.get(ONLINE, "").lower() in ("1", "true", "yes")


def stay_offline() -> None:
    """Switch hub libraries off, unless the user asked for downloads. Variables that the user has set stay."""
    if not online():
        for name in _OFFLINE:
            os.environ.setdefault(name, "1")
