"""Opens the data of a world of bench/leagues.py: training pairs in memory, validation, and the test that decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.decoded_pairs import DecodedSource, HeldOut, scores_of
from bench.sealed_scenes import (
    Swap,
    make_sealed,
    new_combinations,
    sealed_scenes,
    swap_scores,
    swaps_of,
)
from dinorankclip.data.open_data import built_in_scenes, open_stored
from dinorankclip.data.scenes.scene import stored_scenes
from dinorankclip.data.tar_shards import shards_of_folder
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.evaluate.retrieval import both_ways, right_items
from dinorankclip.io import digest, home, one_at_a_time
from dinorankclip.models.folder import AnyModel
from dinorankclip.types import ImageSpec, Source, UserError

SCENES = "scenes"


@dataclass
class LeagueData:
    """Holds the pairs of a world. `name` and `identity` tell data apart in files of costs and of runs."""

    name: str
    identity: str
    where: str
    train: DecodedSource
    sources: dict[str, Source]  # val and test
    swaps: list[Swap] = field(default_factory=list)
    new: np.ndarray | None = None  # places of test images with new combinations
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    _parts: dict[tuple[str, int], HeldOut] = field(default_factory=dict)

    def part(self, name: str, image: ImageSpec) -> HeldOut:
        """Return a held-out part at the size that a model sees."""
        if (name, image.size) not in self._parts:
            self._parts[name, image.size] = HeldOut.of(self.sources[name], image, self.tokenizer)
        return self._parts[name, image.size]

    def scores(self, model: AnyModel) -> Iterator[tuple[str, float]]:
        """Yield all scores of a trained model: val/…, test/…"""
        for name in self.sources:
            part = self.part(name, model.image_spec)
            images, texts = part.embed(model)
            for score, value in scores_of(images, texts, part.captions):
                yield f"{name}/{score}", value
            if name != "test":
                continue
            if self.new is not None and len(self.new):
                _, right = right_items(part.captions)
                i2t, t2i = both_ways(images, texts, right)
                owner = np.repeat(np.arange(len(part.captions)), [len(group) for group in part.captions])
                of_new = np.isin(owner, self.new)
                hits = (i2t.numpy()[self.new] == 0).mean(), (t2i.numpy()[of_new] == 0).mean()
                yield "test/new combinations R@1", float(sum(hits) / 2)
            if self.swaps:
                right_rows = part.embed_captions(model, [swap.right for swap in self.swaps])
                wrong_rows = part.embed_captions(model, [swap.wrong for swap in self.swaps])
                for score, value in swap_scores(images, right_rows, wrong_rows, self.swaps).items():
                    yield f"test/{score}", value


def open_data(world: str, where: str | None, sealed_seed: int, sealed_count: int) -> LeagueData:
    """Open a world's data; the test of the scenes comes from a seed of its own."""
    if world == SCENES:
        return _scenes(where, sealed_seed, sealed_count)
    if where is None:
        raise UserError(f"--world {world} needs its folder of pairs: --data DIR")
    train, val, test = (open_stored(where, split=split) for split in ("train", "val", "test"))
    identity = f"{world}-{digest(train.fingerprint, val.fingerprint, test.fingerprint)[:8]}"
    return LeagueData(world, identity, where, DecodedSource(train), {"val": val, "test": test})


def _scenes(where: str | None, seed: int, count: int) -> LeagueData:
    folder = Path(where) if where else built_in_scenes()
    train, val = (open_stored(folder, split=split) for split in ("train", "val"))
    with one_at_a_time("sealed", home()):
        sealed = make_sealed(home() / f"sealed-{seed}-{count}", seed, count)
    test = open_stored(sealed, split="test")
    scenes = sealed_scenes(seed, count)
    known = [scene for scene, _ in stored_scenes(shards_of_folder(folder / "pairs" / "train")).values()]
    new = new_combinations(known, [captioned.scene for captioned in scenes])
    identity = f"{SCENES}-{digest(train.fingerprint, val.fingerprint, test.fingerprint)[:8]}"
    name = f"{SCENES}-{len(train)}"
    return LeagueData(
        name, identity, str(folder), DecodedSource(train), {"val": val, "test": test}, swaps_of(scenes), new
    )
