"""One side of `make parity-scoring`: the public clip-benchmark package on local sets, run in an environment of its own.

It imports nothing of this project but `dinorankclip.device`, from this clone: torchvision of the package index is built
for CUDA and does not import beside a CPU build of torch without it.

    built/parity-env/bin/python bench/parity_foreign.py WORK NAME=FOLDER …

WORK holds parity.json (an open_clip model config) and parity.safetensors; results are printed as one line of JSON.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BATCH = 64


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    options = parser.parse_args(argv)
    work, sets = options.work, dict(word.split("=", 1) for word in options.sets)
    sys.path.insert(0, str(ROOT))  # the environment has torch and numpy, which is enough for this module
    from dinorankclip.device import declare_missing

    declare_missing()
    import open_clip
    import torch
    from clip_benchmark.datasets.builder import build_dataset
    from clip_benchmark.metrics import zeroshot_classification, zeroshot_retrieval

    torch.set_num_threads(1)
    open_clip.add_model_config(work / "parity.json")
    model, _, transform = open_clip.create_model_and_transforms("parity", pretrained=str(work / "parity.safetensors"))
    model.eval()
    tokenizer = open_clip.get_tokenizer("parity")
    found = {}
    for name, folder in sets.items():
        kind = Path(folder) / "dataset_type.txt"
        retrieval = kind.is_file() and kind.read_text().strip() == "retrieval"
        task = "zeroshot_retrieval" if retrieval else "zeroshot_classification"
        data = build_dataset(f"wds/{name}", root=folder, transform=transform, split="test", task=task)
        loader = torch.utils.data.DataLoader(data.batched(BATCH), batch_size=None, shuffle=False, num_workers=0)
        if retrieval:
            found[name] = zeroshot_retrieval.evaluate(
                model, loader, tokenizer, "cpu", amp=False, recall_k_list=[1, 5, 10]
            )
        else:
            found[name] = zeroshot_classification.evaluate(
                model, loader, tokenizer, data.classes, data.templates, "cpu", amp=False
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
