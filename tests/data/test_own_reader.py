"""A reader that has what `types.Source` says, and nothing else, can be divided, trained on, scored and embedded."""

import numpy as np
import pytest
from pair_making import jpeg

from dinorankclip import io
from dinorankclip.config import FindingSettings, ReadingSettings
from dinorankclip.data.benchmark_sets import source_digest
from dinorankclip.data.damage import Damage
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import WithoutCaptions
from dinorankclip.data.samples import iterate_pairs
from dinorankclip.data.splits import carve, choose, chosen_among, undivided
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import ImageSpec, RawSample, Source, UserError


class Photos:
    """Photos in memory, the last of which is empty."""

    def __init__(self, count):
        self._images = [*(jpeg(number) for number in range(count - 1)), b""]
        self.fingerprint = f"{count} photos"

    def __len__(self):
        return len(self._images)

    def key(self, index):
        return f"photo {index}"

    def captions(self, index):
        return (f"photo number {index}",)

    def image(self, index):
        if not self._images[index]:
            raise Damage("empty-image")
        return self._images[index]

    def read(self, index):
        return RawSample(self.key(index), self.image(index), self.captions(index))

    def sizes(self):
        return np.array([len(image) for image in self._images])

    def stamps(self):
        return np.empty((len(self), 0), dtype=np.int64)


@pytest.fixture(autouse=True)
def kept_here(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")


def test_it_has_nothing_but_what_the_protocol_says():
    said = {name for kind in Source.__mro__ for name in vars(kind) if not name.startswith("_")}
    assert {name for name in vars(Photos) if not name.startswith("_")} == said


def test_it_can_be_divided_and_chosen_from():
    source = Photos(40)
    train, val = carve(source, FindingSettings(val_fraction=0.2))
    assert len(val) == 8 and undivided(train) is undivided(val) is source and undivided(source) is source
    few = choose(train, 5)
    assert len(few) == 5 and undivided(few) is source
    assert (chosen_among(few), chosen_among(train), chosen_among(source)) == (32, 32, 40)
    assert few.sizes().tolist() == [source.sizes()[index] for index in few.indices]
    with pytest.raises(UserError, match="group-column product: only tables"):
        carve(source, FindingSettings(group_column="product"))


def test_it_can_be_trained_on_scored_and_embedded():
    source = Photos(40)
    reading = ReadingSettings(workers=0, max_damaged=1.0)
    loader = PairLoader(source, ImageSpec(24), Tokenizer(), batch=8, seed=0, reading=reading)
    batch = next(iter(loader))
    assert batch.images.shape == (8, 3, 24, 24) and loader.steps_per_epoch == 5
    for seen in (source, WithoutCaptions(source)):
        assert sum(len(keys) for keys, _, _ in iterate_pairs(seen, ImageSpec(24))) == 39
    assert source_digest(source) != source_digest(Photos(41))
