"""This project's scores against the public clip-benchmark package: same weights, same sets (`make parity-scoring`).

    python -m bench.parity_scoring --sets data/caltech101 data/flickr8k --model runs/photos

The model's trunk is written as an open_clip config with weights, which clip-benchmark loads in its own environment
(`--env`). Retrieval counts captions that read alike as different here, as clip-benchmark does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from bench.photos import oblong_set
from dinorankclip.evaluate.retrieval import APART

SAME = {  # ours → theirs
    "T@1": "acc1",
    "T@5": "acc5",
    "mean per class": "mean_per_class_recall",
    "i2t R@1": "text_retrieval_recall@1",
    "i2t R@5": "text_retrieval_recall@5",
    "i2t R@10": "text_retrieval_recall@10",
    "t2i R@1": "image_retrieval_recall@1",
    "t2i R@5": "image_retrieval_recall@5",
    "t2i R@10": "image_retrieval_recall@10",
}
FOREIGN = Path(__file__).with_name("parity_foreign.py")


@dataclass(frozen=True)
class Arguments:
    sets: tuple[str, ...]
    """Folders in the clip-benchmark layout, or folders of such folders."""
    model: str = "open_clip:drc-photo:random"
    """A model without students; of one with random weights scores are near chance."""
    env: Path = Path("built/parity-env")
    """The environment with clip-benchmark."""
    work: Path = Path("built/parity")
    out: Path = Path("docs/bench/parity-scoring.md")
    most: float = 0.1
    """Largest difference allowed, in points."""
    oblong: bool = False
    """Cut a third off every image first, in turn of its height and of its width."""


def main(argv: list[str] | None = None) -> None:
    arguments = tyro.cli(Arguments, description=__doc__, args=argv)

    import torch
    from safetensors.torch import save_file

    from dinorankclip.data.benchmark_sets import find_sets
    from dinorankclip.evaluate.embeddings import EmbeddingStore
    from dinorankclip.evaluate.retrieval import RetrievalScorer
    from dinorankclip.evaluate.suite import SuiteOptions, run_suite
    from dinorankclip.evaluate.zero_shot import ZeroShotScorer
    from dinorankclip.models.loaded import load_model

    torch.set_num_threads(1)
    model = load_model(arguments.model, "cpu", "fp32")
    if model.parts.image_student is not None:
        sys.exit("clip-benchmark knows open_clip models: choose a model without students")
    arguments.work.mkdir(parents=True, exist_ok=True)
    (arguments.work / "parity.json").write_text(json.dumps(model.parts.trunk.config))
    weights = {name: tensor.contiguous() for name, tensor in model.parts.trunk.towers.state_dict().items()}
    save_file(weights, arguments.work / "parity.safetensors")

    places = [place for where in arguments.sets for place in find_sets(where)]
    if arguments.oblong:
        cut = [oblong_set(Path(place.where), arguments.work / f"{place.name}-oblong") for place in places]
        places = [place for folder in cut for place in find_sets(str(folder))]
    scorers = [ZeroShotScorer(), RetrievalScorer(equal_captions=False)]
    options = SuiteOptions(metrics=tuple(scorer.name for scorer in scorers), split="test")
    ours = run_suite(model, places, scorers, EmbeddingStore(None), options)
    for name, text in ours.errors.items():
        print(f"{name}: {text}", file=sys.stderr)
    theirs = _theirs(arguments, {place.name: place.where for place in places if place.name in ours.sets})
    lines, worst = table(ours.sets, theirs)
    verdict = f"Largest difference: {worst:.3f} points (allowed: {arguments.most})."
    print("\n".join(lines), "", verdict, sep="\n")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join([*_head(model, arguments.oblong), "", *lines, "", verdict, ""]))
    if worst > arguments.most or ours.errors:
        sys.exit(1)


def _theirs(arguments: Arguments, sets: dict[str, str]) -> dict[str, dict[str, float]]:
    command = [str(arguments.env / "bin" / "python"), str(FOREIGN), str(arguments.work)]
    command += [f"{name}={where}" for name, where in sets.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(ours: dict[str, Any], theirs: dict[str, dict[str, float]]) -> tuple[list[str], float]:
    """Lines of a Markdown table, in percent, and the largest difference in points."""
    lines = ["| set | score | items | ours | clip-benchmark | difference |", "| --- | --- | --- | --- | --- | --- |"]
    worst = 0.0
    for name, result in ours.items():
        for metric, score in result.scores.items():
            other = theirs[name].get(SAME.get(metric.removesuffix(APART), ""))
            if other is None or other != other:  # NaN: they leave T@5 out where there are fewer classes
                continue
            difference = round(100 * (score.value - other), 3) + 0.0  # no -0.000
            worst = max(worst, abs(difference))
            lines.append(
                f"| {name} | {metric} | {score.n} | {100 * score.value:.3f} | {100 * other:.3f} | {difference:+.3f} |"
            )
    return lines, worst


def _head(model: Any, oblong: bool) -> list[str]:
    config = model.parts.trunk.config
    tower = config["vision_cfg"]
    shown = " Every image has lost a third, in turn of its height and of its width." if oblong else ""
    return [
        f"# Parity of scores with clip-benchmark 1.6.2{', oblong photos' if oblong else ''}",
        "",
        f"`make parity-scoring`: an open_clip config of {tower['image_size']} px, width {tower.get('width')}, "
        f"{tower.get('layers')} layers, {config['embed_dim']} dimensions, the same weights on both sides; fp32 on a "
        "CPU, clip-benchmark in an environment of its own. In percent; captions that read alike count as different "
        f"here, as clip-benchmark has it.{shown}",
    ]


if __name__ == "__main__":
    main()
