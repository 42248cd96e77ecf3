"""Embedding a folder of photos, and preprocessing alone, against open_clip: python -m bench.embedding [--pairs DIR]

open_clip's side is the usual script: a torch DataLoader whose workers open files with Pillow and apply the model's own
transform, then `encode_image`. Ours reads the same files with as many threads. Preprocessing alone is JPEG bytes in
memory → a normalised float batch, on one thread: the evaluation view (resized, the centre cut out), and the
training view (random crop of 90–100 %, for which ours may decode at half size).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bench.harness import Comparison, alternate, arguments, machine_now, write_record
from bench.open_clip_side import OpenClipTrainer, open_clip
from bench.photos import LARGE, enlarged, read_pairs, stored
from bench.sides import Built, running, starting_model
from dinorankclip.config import ReadingSettings
from dinorankclip.data.decode import decode
from dinorankclip.data.folders_and_tables import FolderSource
from dinorankclip.data.samples import Recipe, iterate_pairs, render_whole
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import choose, keep_freed_memory
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.types import ImageSpec, RawSample

THEIRS, OURS = "open_clip", "ours"
PREPROCESSING_WANTED = 3.0
EMBEDDING_WANTED = {"ViT-B-32": 1.0}  # any small trunk: 1.5
SAME_EMBEDDING = 0.999  # least cosine: pixels of the two resizings differ by a level
BATCH = 64


class Files(Dataset):
    """Photos as open_clip's users read them."""

    def __init__(self, folder: Path, transform: Callable[[Image.Image], Tensor]):
        self.paths, self.transform = sorted(folder.rglob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(Image.open(self.paths[index]))


def their_embedding(name: str, folder: Path, workers: int) -> Built:
    theirs = OpenClipTrainer(name, starting_model(name), BATCH)
    theirs.model.eval()

    @torch.no_grad()
    def run() -> Tensor:
        loader = DataLoader(Files(folder, theirs.transform), batch_size=BATCH, num_workers=workers)
        return torch.cat([theirs.model.encode_image(images, normalize=True) for images in loader])

    return run, {"embeddings": run().numpy()}


def our_embedding(name: str, folder: Path, workers: int) -> Built:
    keep_freed_memory()
    model = LoadedModel(starting_model(name), name, choose("cpu", "fp32"))

    def run() -> Tensor:
        batches = iterate_pairs(FolderSource(folder), model.image_spec, BATCH, threads=max(1, workers))
        return torch.cat([model.encode_image(images) for _, images, _ in batches])

    return run, {"embeddings": run().numpy()}


def embedding(name: str, samples: list[RawSample], shown: str, workers: int, rounds: int, threads: int) -> Comparison:
    with stored(samples, "folder") as folder:
        builders = {THEIRS: partial(their_embedding, name, folder, workers)}
        builders |= {OURS: partial(our_embedding, name, folder, workers)}
        with running(builders, threads) as sides:
            agreement = (sides[THEIRS].facts["embeddings"] * sides[OURS].facts["embeddings"]).sum(1).min()
            if agreement < SAME_EMBEDDING:
                raise SystemExit(f"{name}: the sides' embeddings of one photo have a cosine of {agreement:.3f}")
            times = alternate(sides, rounds, warmups=0, title=f"embedding, {name}")
    note = f"{workers} workers or threads. Least cosine between the sides' embeddings: {agreement:.4f}."
    wanted = {OURS: EMBEDDING_WANTED.get(name, 1.5)}
    title = f"Embedding {len(samples)} photos {shown}, {name}"
    return Comparison(title, times, THEIRS, len(samples), unit="images", wanted=wanted, note=note)


def their_preprocessing(name: str, training: bool, samples: list[RawSample]) -> Built:
    spec = starting_model(name).trunk.image_spec
    transform = open_clip.image_transform(spec.size, is_train=training)

    def run() -> Tensor:
        return torch.stack([transform(Image.open(io.BytesIO(sample.image))) for sample in samples])

    return run, {"levels": _levels(run(), spec), "size": spec.size}


def our_preprocessing(name: str, training: bool, samples: list[RawSample]) -> Built:
    keep_freed_memory()
    model = starting_model(name)
    spec, draws = model.trunk.image_spec, np.random.default_rng(0)
    recipe = Recipe(spec, Tokenizer(), ReadingSettings(crop_scale=(0.9, 1.0)))

    def one(sample: RawSample) -> Tensor:
        if training:
            return recipe.sample(sample, draws, draws).image
        return render_whole(decode(sample.image), spec.size)

    def run() -> Tensor:
        return model.normalised(torch.stack([one(sample) for sample in samples]))

    return run, {"levels": _levels(run(), spec)}


def _levels(images: Tensor, spec: ImageSpec) -> np.ndarray:
    """Normalised images as 0 … 255."""
    mean, std = torch.tensor(spec.mean).view(3, 1, 1), torch.tensor(spec.std).view(3, 1, 1)
    return (255 * (images * std + mean)).round().numpy()


def preprocessing(name: str, samples: list[RawSample], shown: str, rounds: int) -> Iterator[Comparison]:
    for view, training in (("evaluation view", False), ("training view", True)):
        builders = {THEIRS: partial(their_preprocessing, name, training, samples)}
        builders |= {OURS: partial(our_preprocessing, name, training, samples)}
        with running(builders, threads=1) as sides:
            gap = np.abs(sides[THEIRS].facts["levels"] - sides[OURS].facts["levels"]).mean()
            size = sides[THEIRS].facts["size"]
            times = alternate(sides, rounds, title=view)
        note = f"{len(samples)} photos, one thread."
        if not training:
            note += f" The sides' pixels differ by {gap:.2f} of 255 levels on average."
        wanted = {OURS: PREPROCESSING_WANTED}
        title = f"Preprocessing photos {shown} to {size} px, {view}"
        yield Comparison(title, times, THEIRS, len(samples), "images", wanted=wanted, note=note)


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="reading processes of open_clip's side, threads of ours")
    parser.add_argument("--trunks", nargs="+", default=["ViT-B-32:128", "drc-small:1024"], help="TRUNK:PHOTOS …")
    options = parser.parse_args(argv)
    if options.quick:
        options.trunks = ["drc-tiny:32"]
    about = machine_now(options.threads)
    plans = [(name, int(count)) for name, count in (trunk.rsplit(":", 1) for trunk in options.trunks)]
    photos = read_pairs(options.pairs, max(count for _, count in plans))
    sizes = {f"enlarged to {LARGE[0]}×{LARGE[1]}": enlarged(photos), "as stored": photos}
    rounds = options.rounds or (2 if options.quick else 3)
    comparisons = []
    for name, count in plans:
        for shown, samples in sizes.items():
            comparisons += preprocessing(name, samples[: min(count, 128)], shown, rounds)
            comparisons.append(embedding(name, samples[:count], shown, options.workers, rounds, options.threads))
    write_record("embedding", comparisons, options, about)


if __name__ == "__main__":
    main()
