"""Make files as version 0.1 wrote them, and lay them out for tests: a run, a teacher's cache, an export, embeddings,
scores, and results of a study.

`python -m tests.old_files` makes golden_files/v0.1 anew. That is right only with the code of that version: the files
prove that later code opens them.

The run stands after step 3 of 6. Its checkpoint is made small enough to be committed. In tensors of more than 2000
numbers weights keep 4 bits after the leading one and Adam's moments are zero, as are rows of the token table that no
caption uses. `packed.tar.xz` holds the checkpoint and the export's weights, which are the same. The export lacks its
copy of the vocabulary, which nothing here reads. The log and the scores of training are those of all 6 steps.
"""

import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dinorankclip.models.loaded import load_model
from dinorankclip.teachers.registry import open_teacher
from tests.command_line import run_all
from tests.golden_curves import PAIRS, TEACHERS, losses_of

VERSION = Path(__file__).parent / "golden_files" / "v0.1"
STUDY = Path(__file__).parents[1] / "docs" / "study" / "flickr8k" / "results.json"
PACKED = VERSION / "packed.tar.xz"
EXPECTED = VERSION / "expected.json"  # embeddings, and the losses of the steps that follow
KEPT_STEP, STEPS = 3, 6
OWN_CACHE = "own-cache"  # a copy of the cache, as if its teacher had been drawn on this machine
TABLE = "trunk.towers.token_embedding.weight"
CAPTIONS = ["red round cat dog boat", "huge blue house tree tiny"]
IMAGES = ["00000.jpg", "00001.jpg"]  # of the test part

TRAIN = [
    *("train", "--data", "pairs", "--run", "run", "--method", "dinorankclip", "--distil.cache", "cache"),
    *("--reading.workers", "0", "--budget.batch", "16", "--budget.threads", "1", "--budget.device", "cpu"),
    *("--record.log-every", "1", "--record.save-every", "1000", "--record.keep", "5", "--record.no-tensorboard"),
]
CACHE = ["teacher", "cache", "--data", "pairs", "--out", "cache", "--threads", "1", "--device", "cpu", *TEACHERS]
SCORE_RUN = ["score", "run", "--sets", "pairs", "--draws", "100", "--no-cache", "--no-pictures", "--threads", "1"]
SCORE_EXPORT = ["score", "exported", "--out", "scored", *SCORE_RUN[2:]]
EXPORT = ["export", "run", "--out", "exported"]
EMBED = ["embed", "exported", "--data", "pairs", "--split", "test", "--out", "embedded", "--device", "cpu"]


def epochs(count: int) -> list[str]:
    return [*TRAIN, "--budget.epochs", str(count)]


def lay_out(folder: Path) -> Path:
    """Copy pairs and all files of the version to `folder`, in which the commands above then run."""
    shutil.copytree(PAIRS, folder / "pairs")
    shutil.copytree(VERSION, folder, dirs_exist_ok=True)
    with tarfile.open(folder / PACKED.name) as tar:
        tar.extractall(folder, filter="data")
    _copy_with_random_weights_of_this_processor(folder / "cache", folder / OWN_CACHE)
    return folder


def _copy_with_random_weights_of_this_processor(cache: Path, copy: Path) -> None:
    """Copy a cache and put the hash of the random teacher that this machine draws in the place of the stored one.

    timm draws weights through erfinv, whose last bit depends on the processor; a cache names its teacher by hash.
    """
    shutil.copytree(cache, copy)
    plan = json.loads((copy / "plan.json").read_text())
    here = open_teacher(plan["teacher"], plan["preprocessing"]["size"]).weights_hash
    for path in (copy / "plan.json", copy / "manifest.json"):
        path.write_text(path.read_text().replace(plan["weights"], here))


def embeddings(model: Path, pairs: Path) -> dict[str, list[list[float]]]:
    """Embed two images of the test part and two captions through the public `load_model`."""
    loaded = load_model(str(model), device="cpu")
    with tarfile.open(pairs / "test" / "0.tar") as tar:
        pictures = torch.stack([loaded.preprocess(tar.extractfile(name).read()) for name in IMAGES])
    found = {"images": loaded.encode_image(pictures), "captions": loaded.encode_text(CAPTIONS)}
    return {name: rows.tolist() for name, rows in found.items()}


def make_small(checkpoint: Path) -> None:
    """Change a checkpoint as the top of this file says."""
    model, training = (load_file(checkpoint / f"{name}.safetensors") for name in ("model", "training"))
    unused = (training[f"optimizer/model.{TABLE}/exp_avg"] == 0).all(1)
    model[TABLE][unused] = 0
    for tensors in (model, training):
        for name, tensor in tensors.items():
            if name.startswith("optimizer/") and tensor.numel() > 2000:
                tensor.zero_()
            elif tensor.dtype == torch.float32 and tensor.numel() > 2000:
                tensor.view(torch.int32).bitwise_and_(~((1 << 19) - 1))
    save_file(model, checkpoint / "model.safetensors")
    save_file(training, checkpoint / "training.safetensors")


def make(folder: Path) -> None:
    """Make all files in `folder`, then put them under golden_files/v0.1."""
    shutil.copytree(PAIRS, folder / "pairs")
    run_all([CACHE, epochs(2)], folder)
    checkpoints = folder / "run" / "checkpoints"
    shutil.rmtree(checkpoints / f"step-{STEPS}")
    make_small(checkpoints / f"step-{KEPT_STEP}")
    for link in ("last", "best"):
        (checkpoints / link).unlink()
        (checkpoints / link).symlink_to(f"step-{KEPT_STEP}")
    (folder / "run" / "report.html").unlink()
    run_all([SCORE_RUN, EXPORT, SCORE_EXPORT, EMBED], folder)
    for vocabulary in (folder / "exported").glob("*.gz"):
        vocabulary.unlink()
    shutil.rmtree(VERSION, ignore_errors=True)
    VERSION.mkdir(parents=True)
    with tarfile.open(PACKED, "w:xz", preset=9) as tar:
        for path in ("exported/model.safetensors", "run/checkpoints"):  # in this order xz sees that they are equal
            tar.add(folder / path, path, filter=_nobodys)
    (VERSION / "study").mkdir()
    shutil.copyfile(STUDY, VERSION / "study" / STUDY.name)
    for name in ("run", "cache", "exported", "embedded", "scored"):
        leave = shutil.ignore_patterns("checkpoints", "model.safetensors", ".*")
        shutil.copytree(folder / name, VERSION / name, ignore=leave)
    expected = embeddings(folder / "run", folder / "pairs")
    run_all([epochs(2)], folder)
    after = losses_of(folder / "run")[KEPT_STEP:]
    EXPECTED.write_text(json.dumps(expected | {"losses": after}) + "\n")


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch))
