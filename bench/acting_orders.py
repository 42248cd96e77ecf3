"""Which orders act in a finished run: λ_r, relative spread, and held-out list NLL with each order removed.

    python -m bench.acting_orders runs/order3

Lists are those of validation batches of the run's own size, one caption an image. A table in Markdown is printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from dinorankclip.config import LossSettings, ReadingSettings
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.samples import iterate_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses import Objective
from dinorankclip.models.folder import find_model, load_folder
from dinorankclip.run_files import MODALITIES, gate_name, is_inert, spread_name
from dinorankclip.types import Embeddings, Progress


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run of a method that ranks")
    report(parser.parse_args(argv).run)


def report(run: Path) -> None:
    settings = json.loads((run / "config.json").read_text())
    model = load_folder(run).eval()
    objective = Objective(model.dim, settings["method"], LossSettings(**settings["loss"])).eval()
    state = load_file(find_model(run) / "training.safetensors")
    objective.load_state_dict({n.split("/", 1)[1]: t for n, t in state.items() if n.startswith("objective/")})
    objective.ranking.staged = False  # the run is over: every order acts
    batches = embedded_batches(model, settings)
    scale = model.scale().detach()
    order = settings["loss"]["order"]
    every = tuple(range(2, order + 1))
    choices = {f"all orders to {order}": every}
    choices |= {f"without order {r}": tuple(q for q in every if q != r) for r in every}
    choices |= {"order 1 only": ()}
    with torch.no_grad():
        reports = [objective(b, scale, Progress(1, 1, 1), detailed=True).report for b in batches]
        rows = {name: mean([objective.ranking.nll_with(b.image, b.text, scale, active) for b in batches])
                for name, active in choices.items()}  # fmt: skip
    report = mean(reports)
    print(f"{run.name}: {len(batches)} validation batches of {len(batches[0].image)}, s = {scale.item():.1f}\n")
    print("| order | λ image | λ text | spread image | spread text | |\n| --- | --- | --- | --- | --- | --- |")
    for r in every:
        spreads = [report[spread_name(r, modality)] for modality in MODALITIES]
        verdict = "inert" if is_inert(max(spreads)) else "acts"
        gates = [report[gate_name(r, modality)] for modality in MODALITIES]
        print(f"| {r} | {gates[0]:.4f} | {gates[1]:.4f} | {spreads[0]:.4f} | {spreads[1]:.4f} | {verdict} |")
    print("\n| heads that act | NLL in-modal | NLL cross-modal |\n| --- | --- | --- |")
    for name, nll in rows.items():
        print(f"| {name} | {nll['in']:.3f} | {nll['cross']:.3f} |")


def embedded_batches(model, settings: dict) -> list[Embeddings]:
    """Whole batches of the validation part, in a fixed shuffled order."""
    reading = ReadingSettings(**settings["reading"])
    tokenizer, spec = Tokenizer(model.trunk.text_spec), model.trunk.image_spec
    images, texts = [], []
    for _, pixels, captions in iterate_pairs(open_pairs(settings["data"], reading, "val"), spec):
        images.append(model.encode_image(pixels))
        texts.append(model.encode_text(tokenizer([group[0] for group in captions])))
    image, text = torch.cat(images).clone(), torch.cat(texts).clone()
    size = settings["budget"]["batch"]
    shuffled = torch.randperm(len(image), generator=torch.Generator().manual_seed(0))
    return [Embeddings({"image": image[i], "text": text[i]}) for i in shuffled.split(size) if len(i) == size]


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


if __name__ == "__main__":
    main()
