"""Tiny runs and pairs for tests of the Python API."""

from pathlib import Path

import numpy as np
from safetensors.torch import load_file

# A run of four steps that takes about a second.
TINY = {
    "preset": "scenes",
    "method": "clip",
    "model.trunk": "drc-tiny",
    "budget": {"batch": 16, "epochs": 2, "threads": 1},
    "record": {"log_every": 1, "save_every": 2, "tensorboard": False},
    "reading": {"workers": 0, "val_fraction": 0.2},
}
WORDS = ("red", "green", "blue", "round", "square", "tiny", "huge", "cat", "dog", "boat")


def pairs(count: int = 40, seed: int = 0) -> list[tuple[np.ndarray, tuple[str, ...]]]:
    """Arrays of random colour patches with two random captions each."""
    draw = np.random.default_rng(seed)
    return [
        (
            np.kron(draw.integers(0, 256, (4, 4, 3)), np.ones((12, 12, 1))).astype(np.uint8),
            tuple(" ".join(draw.choice(WORDS, 5)) for _ in range(2)),
        )
        for _ in range(count)
    ]


def weights(run: Path) -> dict[str, bytes]:
    """The bytes of every tensor of the last checkpoint's model."""
    (file,) = (Path(run) / "checkpoints" / "last").glob("model*.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}
