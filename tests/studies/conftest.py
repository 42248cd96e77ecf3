import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dinorankclip.config import ReadingSettings, TrainSettings, as_dict
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.teachers.cache_request import CacheSpec, cache_of_data
from dinorankclip_studies.material import StudyModels
from tests.models.model_making import saved, small_model
from tests.set_making import write_captions, write_classes

FAMILIES = {"pets": ["cat", "dog"], "others": ["boat", "tree"]}
LABELS = (0, 1, 2, 3)


@pytest.fixture(scope="session")
def kept_folder(tmp_path_factory) -> Path:
    """Sets, the random teacher's cache of the pairs, and untrained models as a study keeps them."""
    root = tmp_path_factory.mktemp("kept")
    pairs, fine = root / "sets" / "pairs", root / "sets" / "fine"
    for split, times in (("train", 6), ("val", 3), ("test", 4)):
        write_captions(pairs, LABELS * times, split)
    for split, times in (("train", 6), ("test", 4)):
        write_classes(fine, LABELS * times, split)
    (fine / "families.json").write_text(json.dumps(FAMILIES))
    cache_of_data(root / "cache", CacheSpec(str(pairs), "random-vit", 64), ReadingSettings(), torch.device("cpu"))
    settings = replace(TrainSettings(), data=str(pairs))
    for number, (cell, variant) in enumerate((("clip", None), ("rankclip", None), ("rank-3", None), ("full", "full"))):
        run = root / cell
        model = small_model(variant, seed=number)
        saved(run / "checkpoints" / "last", model)
        taught = replace(settings.distil, cache=str(root / "cache") if variant else None)
        (run / "config.json").write_text(json.dumps(as_dict(replace(settings, distil=taught))))
        if cell == "rank-3":
            heads = TransitionHeads(model.dim, 3, modality="text")
            weights = {
                f"objective/ranking.transitions.text.{name}": value for name, value in heads.state_dict().items()
            }
            save_file(weights, run / "checkpoints" / "last" / "training.safetensors")
    return root


@pytest.fixture
def kept(kept_folder, tmp_path, monkeypatch) -> StudyModels:
    monkeypatch.chdir(tmp_path)  # `built/` of embeddings is made there
    cells = ("clip", "rankclip", "rank-3", "full")
    return StudyModels({cell: kept_folder / cell for cell in cells}, (str(kept_folder / "sets"),))
