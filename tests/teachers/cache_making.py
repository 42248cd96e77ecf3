"""Data in memory and teachers whose answers are known, for tests of the cache."""

import io
import os
import signal
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from dinorankclip.data.damage import Damage
from dinorankclip.io import digest
from dinorankclip.teachers.frozen_teacher import Preprocessing, Teacher, TeacherCard, TextTeacher
from dinorankclip.teachers.weights_files import hash_of
from dinorankclip.types import RawSample

PATCH, WIDTH, SUMMARY = 8, 16, 16
WORDS = ("red", "green", "round", "cat", "dog", "boat", "tree")


class Pictures:
    """`count` images of `side` pixels, stored without loss; those in `damaged` cannot be read."""

    def __init__(
        self, count: int, side: int = 64, seed: int = 0, damaged: tuple[int, ...] = (), cause: str = "corrupt"
    ) -> None:
        draw = np.random.default_rng(seed)
        cells = draw.integers(0, 256, (count, side // PATCH, side // PATCH, 3))
        self.pixels = cells.repeat(PATCH, 1).repeat(PATCH, 2).astype(np.uint8)
        # Noise within the cells, so that a token is no single colour.
        self.pixels += draw.integers(0, 40, self.pixels.shape, dtype=np.uint8)
        self.texts = [" ".join(draw.choice(WORDS, draw.integers(1, 6))) for _ in range(count)]
        self.damaged, self.cause = damaged, cause
        self.fingerprint = digest("pictures", count, side, seed)

    def __len__(self):
        return len(self.pixels)

    def key(self, index):
        return f"picture {index}"

    def stamps(self):
        return np.empty((len(self), 0), dtype=np.int64)

    def captions(self, index):
        return (self.texts[index], "a picture")

    def read(self, index):
        if index in self.damaged:
            raise Damage(self.cause)
        buffer = io.BytesIO()
        Image.fromarray(self.pixels[index]).save(buffer, "PNG")
        return RawSample(self.key(index), buffer.getvalue(), self.captions(index))


class Local(nn.Module):
    """A token sees its own patch and nothing else: the patch's mean colour through a random curved map.

    The features of a crop along patch borders are then the crop of the features, exactly, and a flip is a flip.
    """

    def __init__(self, seed: int = 0, dies_after: int | None = None) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(WIDTH, 3, generator=draw))
        self.dies_after = dies_after

    def forward(self, images):
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        colours = nn.functional.avg_pool2d(images, PATCH).flatten(2).transpose(1, 2)
        tokens = torch.tanh(colours @ self.weight.T) * 3
        return tokens, tokens.mean(1) + 0.1


def local_teacher(size: int = 64, seed: int = 0, dies_after: int | None = None) -> Teacher:
    network = Local(seed, dies_after)
    preprocessing = Preprocessing(size, (0.5,) * 3, (0.25,) * 3)
    grid = (size // PATCH, size // PATCH)
    return Teacher(TeacherCard(f"local {seed}", "none"), network, hash_of(network.state_dict()), preprocessing, grid)


class Letters(nn.Module):
    """A token's feature is drawn from its id."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(128, 12, generator=torch.Generator().manual_seed(1)))

    def forward(self, ids, mask):
        tokens = self.table[ids] * mask[..., None]
        return tokens, tokens.sum(1) / mask.sum(1, keepdim=True)


def letter_teacher() -> TextTeacher:
    """Reads letter by letter; a word is cut off after 20 letters."""

    def read(captions):
        rows = [[(ord(c) % 128, w) for w, word in enumerate(text.split()) for c in word][:20] for text in captions]
        length = max(map(len, rows))
        ids, word_ids = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), -1)
        for row, letters in enumerate(rows):
            for place, (letter, word) in enumerate(letters):
                ids[row, place], word_ids[row, place] = letter, word
        return ids, word_ids >= 0, word_ids

    network = Letters()
    return TextTeacher(TeacherCard("letters", "none"), network, hash_of(network.state_dict()), read)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
