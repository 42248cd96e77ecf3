"""Small evaluation sets in the clip-benchmark layout, and a model that knows their answers, for tests of scoring."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F

from dinorankclip.types import ImageSpec, TextSpec
from tests.data.pair_making import write_tar as write_members

NAMES = ("cat", "dog", "boat", "tree")
COLOURS = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [250, 250, 10]], np.uint8)


def patch(label, shade=0):
    """A JPEG of one colour, which tells the class."""
    pixels = np.broadcast_to(np.clip(COLOURS[label].astype(int) - shade, 0, 255).astype(np.uint8), (20, 24, 3))
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95)


def write_tar(path: Path, members):
    """The only shard of its part."""
    write_members(path, members)
    (path.parent / "nshards.txt").write_text("1\n")


def write_classes(folder: Path, labels=(0, 1, 2, 3) * 3, split="test", names=NAMES, templates=("a {c}.", "one {c}.")):
    """A classification part: every image shows the colour of its class."""
    write_tar(
        folder / split / "0.tar",
        [
            member
            for n, label in enumerate(labels)
            for member in ((f"s{n:03d}.jpg", patch(label, n)), (f"s{n:03d}.cls", str(label).encode()))
        ],
    )
    (folder / "classnames.txt").write_text("\n".join(names) + "\n")
    if templates:
        (folder / "zeroshot_classification_templates.txt").write_text("\n".join(templates) + "\n")
    return folder


def write_captions(folder: Path, labels=(0, 1, 2, 3), split="test", each=2):
    """A retrieval part: captions name the class of the image."""
    write_tar(
        folder / split / "0.tar",
        [
            member
            for n, label in enumerate(labels)
            for member in (
                (f"k{n:03d}.jpg", patch(label, 5 * n)),
                (f"k{n:03d}.txt", "".join(f"picture {n} of a {NAMES[label]}, {c}\n" for c in range(each)).encode()),
            )
        ],
    )
    (folder / "dataset_type.txt").write_text("retrieval\n")
    return folder


@dataclass
class Placed:
    precision: str = "fp32"


class ColourModel:
    """Stands where `load_model` does: images by their mean colour, texts by the class they name. It counts."""

    name, identity, reason, dim = "colours", "c0ffee", "a stand-in", 4
    image_spec, text_spec, placement = ImageSpec(16), TextSpec(), Placed()

    def __init__(self, collapsed=False):
        self.collapsed = collapsed
        self.images_seen = self.texts_read = 0

    def encode_image(self, images):
        self.images_seen += len(images)
        colours = images.float().mean((2, 3)) / 255
        rows = F.normalize(torch.exp(-8 * torch.cdist(colours, torch.tensor(COLOURS) / 255)), dim=1)
        return torch.ones(len(images), self.dim) / 2 if self.collapsed else rows

    def image_features(self, images):
        return images.float().mean((2, 3)) / 255

    def tokenizer(self, captions):
        named = [[word in caption for word in NAMES].index(True) for caption in captions]
        return torch.tensor(named)[:, None]

    def encode_text(self, texts):
        self.texts_read += len(texts)
        rows = F.one_hot(texts[:, 0], self.dim).float()
        return torch.ones(len(texts), self.dim) / 2 if self.collapsed else rows
