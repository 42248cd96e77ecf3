"""Small served models and sets: two tiny models over a folder of pairs, one photo damaged, hostile captions."""

import json
from pathlib import Path

import torch
from fastapi.testclient import TestClient
from safetensors.torch import save_file

from dinorankclip.config import FindingSettings, TrainSettings, as_dict
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.io import point
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.models.loaded import load_model
from dinorankclip.serve.app import create_app
from dinorankclip.serve.collection import open_data
from dinorankclip.serve.served_model import ServedModel
from dinorankclip.serve.state import ServedState
from tests.models.model_making import photo, saved, small_model

TOKEN = "a-token-of-the-tests"
HOSTILE = '<script>alert(1)</script>" onload="x'
PAIRS, DAMAGED = 13, 4  # image 4 is no image


def write_pairs(folder: Path, count: int = PAIRS) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        name = f"{number:02d}.jpg" if number != 7 else '07"><img src=x>.jpg'
        photo(number, 60 + number, 48).save(folder / name, "JPEG")
        captions = [f"scene number {number} with a thing", f"another look at {number}"]
        captions = [HOSTILE, *captions] if number == 2 else captions
        (folder / name).with_suffix(".txt").write_text("\n".join(captions) + "\n")
    (folder / f"{DAMAGED:02d}.jpg").write_bytes(b"this is no image")
    return folder


def write_run(folder: Path, order: int = 3, variant: str | None = "full", seed: int = 0, opened: float = 0.0) -> Path:
    """A run folder with a model and, from order 2 on, transition heads whose gates are open."""
    model = small_model(variant, seed)
    checkpoint = saved(folder / "checkpoints" / "step-9", model)
    point(folder / "checkpoints" / "last", "step-9")
    settings = as_dict(TrainSettings()) | {"method": "rank" if order else "clip", "data": "elsewhere"}
    settings["loss"] = settings["loss"] | {"order": order, "head_dim": 8}
    (folder / "config.json").write_text(json.dumps(settings))
    log = [{"step": step, "loss": 3.0 - step / 10, "epoch": step / 4, "spread2_image": 0.1, "spread3_image": 1e-5}
           for step in range(1, 10)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (checkpoint / "training.json").write_text('{"step": 9}')
    if order:
        loss = RankingLoss(model.dim, order, 8, seed=seed)
        with torch.no_grad():
            for heads in loss.transitions.values():
                for gate in heads.gates.values():
                    gate.fill_(opened)
        save_file(
            {f"objective/ranking.{n}": t for n, t in loss.state_dict().items()}, checkpoint / "training.safetensors"
        )
    return folder


def served(models: list[Path], data: Path, store: Path, **options) -> ServedState:
    loaded = [ServedModel(id, load_model(str(path), "cpu")) for id, path in zip("ab", models)]
    collection = open_data(str(data), "all", FindingSettings(), [str(path) for path in models])
    return ServedState(loaded, collection, token=TOKEN, store=EmbeddingStore(store), **options)


def client_of(state: ServedState, pages: bool = False, **headers: str) -> TestClient:
    headers = {"Authorization": f"Bearer {TOKEN}"} | headers
    return TestClient(create_app(state, pages), "http://127.0.0.1:8000", headers=headers, follow_redirects=False)
