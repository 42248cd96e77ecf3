"""Loading the model that a verb was given."""

from __future__ import annotations

import warnings
from typing import Any


def load_quietly(model: str, device: str) -> Any:
    """`load_model` for a command, which prints `reason` in its own words: its warnings say the same."""
    from dinorankclip import load_model
    from dinorankclip.memory import keep_freed_memory

    keep_freed_memory()  # batches of embeddings want the same memory again and again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load_model(model, device=device)
