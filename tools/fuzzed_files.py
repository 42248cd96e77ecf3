"""The files that fuzz_inputs.py damages, and the readers of each: a run, an export, a cache, a collection, a study."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dinorankclip import io as files
from dinorankclip import run_files
from dinorankclip.checked_files import read_object
from dinorankclip.checksums import read_sealed, seal_folder, sealed, sealed_line
from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.row_store import RowStore
from dinorankclip.data.tar_shards import ShardSource, file_stamp
from dinorankclip.evaluate.example_queries import note_examples, read_examples
from dinorankclip.evaluate.scores_file import _read_or_begin, compare_scores, read_items, read_scores
from dinorankclip.json_shape import NUMBER, named
from dinorankclip.models.card import card, provenance
from dinorankclip.models.export_model import write_export
from dinorankclip.models.folder import load_folder
from dinorankclip.models.loaded import load_model
from dinorankclip.report.html import Page
from dinorankclip.report.run_findings import examine_run
from dinorankclip.report.run_report import _fusion as fusion_section
from dinorankclip.report.run_report import _scores, _subtitle
from dinorankclip.search.embed_collection import EmbeddingFolder
from dinorankclip.search.index import PhotoIndex, QueryMemo, save_arrays
from dinorankclip.search.model_notes import checkpoint_note, held_out_share
from dinorankclip.search.photo_search import ModelFacts, _read_facts, _store_facts
from dinorankclip.teachers.cache_format import finish
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train.checkpoints import train_command
from dinorankclip.train.cost import run_data, spending, unmatched
from dinorankclip.types import View
from dinorankclip_studies.results import Results
from tests.old_files import VERSION, lay_out
from tools.fuzz_inputs import Kind

PHOTO_INDEX, QUERIES, FACTS = "photos/index.npz", "photos/index.queries.npz", "photos/models.json"


def prepare(folder: Path, old: bool = False) -> Path:
    """Lay out small examples of all files: as version 0.1 wrote them, or as this version does."""
    lay_out(folder)
    if not old:
        _write_anew(folder)
    rows = np.eye(4, 8, dtype=np.float32)
    index = PhotoIndex(list("abcd"), np.arange(8).reshape(4, 2), rows, np.full(4, -1, np.int8))
    (folder / "photos").mkdir()
    index.save(folder / PHOTO_INDEX)
    save_arrays(folder / QUERIES, queries=np.array([b"words a"]), rows=rows[:1])
    _store_facts(folder / "photos", "key", ModelFacts("abc", None))
    store = RowStore(folder / "rows", 4, {"model": "x"})
    store.write(range(4), rows, np.full(4, -1, np.int8))
    files.write_json(folder / "run" / run_files.BEFORE, sealed({"val/i2t R@1": 0.1}))
    pairs, captions, same = open_pairs(folder / "pairs", split="test"), [["a cat"], ["a dog"]], torch.eye(2)
    note_examples(folder / "run", 3, "val", pairs, range(2), captions, same, same)
    with contextlib.redirect_stdout(io.StringIO()):
        write_export(str(folder / "run"), folder / "trunk", ["open-clip"])
    source = ShardSource([folder / "pairs" / "test" / "0.tar"])
    stored = files.INDEX_FOLDER / f"{file_stamp(source.shards[0])}.npz"
    (folder / "index.npz").write_bytes(stored.read_bytes())
    return folder


def _write_anew(folder: Path) -> None:
    """Give the files of version 0.1 the checksums with which this version writes them."""
    run, cache = folder / "run", folder / "cache"
    sealed_files = [run / f"{name}.json" for name in ("config", "environment", "fusion", "scores")]
    sealed_files += [folder / "scored" / "scores.json", folder / "embedded" / "manifest.json", cache / "plan.json"]
    for path in sealed_files:
        files.write_json(path, sealed(read_object(path)))
    files.write_text(run / "metrics.jsonl", "".join(map(sealed_line, run_files.read_metrics(run))))
    manifest = read_object(cache / "manifest.json")
    finish(cache, manifest["plan"], manifest["damaged"], manifest.get("licences", {}))
    Results.load(folder / "study").save(folder / "study" / "results.json")
    for place in (run / "checkpoints" / "step-3", folder / "exported"):
        seal_folder(place)


def _run(folder: Path) -> Any:
    run = folder / "run"
    settings, spent = run_files.read_settings(run), spending(run)
    return (
        settings, _subtitle(settings, spent.method), spent.pairs_seen, unmatched(spent, spent), run_data(run),
        train_command(settings), [finding.what for finding in examine_run(run)], run_files.read_environment(run),
        provenance(run / "checkpoints" / "step-3", "run"), checkpoint_note(str(run)), held_out_share(str(run)),
    )  # fmt: skip


def _scored(folder: Path) -> Any:
    run, page = folder / "run", Page("x", "y")
    scores = read_scores(run)
    _scores(page, run_files.stored_scores(run))
    return scores.trained.keys(), compare_scores(scores, scores, 0.95, 100)[1], spending(run), page.html()


def _fusion(folder: Path) -> Any:
    page, stored = Page("x", "y"), run_files.read_fusion(folder / "run")
    fusion_section(page, stored)
    return page.html()


def _model(folder: Path) -> Any:
    return _sums(load_folder(folder / "run" / "checkpoints" / "step-3"))


def _exported(folder: Path) -> Any:
    model = load_model(folder / "exported", device="cpu")
    known = provenance(folder / "exported", "x")
    return _sums(model.parts), card(model, known, "")


def _trunk(folder: Path) -> Any:
    return _sums(load_model(f"open_clip:{folder / 'trunk'}", device="cpu").parts)


def _sums(model: Any) -> list[float]:
    return [float(tensor.double().sum()) for tensor in model.state_dict().values()]


def _cache(folder: Path) -> Any:
    cache = TeacherCache(folder / "cache", "train")
    keys = [f"{number:05d}" for number in range(3)]
    features = cache.images(keys, [View()] * 3)
    return cache.identity, {name: float(torch.nan_to_num(values).sum()) for name, values in features.items()}


def _collection(folder: Path) -> Any:
    plan = read_object(VERSION / "embedded" / "manifest.json")["plan"]
    opened = EmbeddingFolder(folder / "embedded", plan, {}, 128, half=False)
    return opened.complete, opened.items("images"), opened.rows("texts"), opened.damaged


def _study(folder: Path) -> Any:
    results = Results.load(folder / "study")
    return results.cells(), len(results.runs), results.chances


def _index_table(folder: Path) -> Any:
    """Open shards whose stored index is the damaged file."""
    shard = folder / "pairs" / "test" / "0.tar"
    files.INDEX_FOLDER.mkdir(parents=True, exist_ok=True)
    (files.INDEX_FOLDER / f"{file_stamp(shard)}.npz").write_bytes((folder / "index.npz").read_bytes())
    source = ShardSource([shard])
    with contextlib.suppress(Damage):
        return source.fingerprint, len(source), [source.captions(index) for index in range(len(source))]


def _photo_index(folder: Path) -> Any:
    try:
        index = PhotoIndex.load(folder / PHOTO_INDEX)
    except (OSError, ValueError) as error:  # `PhotoSearch` then makes the index anew
        raise _Anew(str(error)) from error
    return index.names, index.rows.shape, index.nearest(np.ones(8, np.float32), 2), index.damaged().summary()


class _Anew(Exception):
    pass


def _quietly(read: Any) -> Any:
    """Count a reader that gives nothing for a damaged file as refusing it, as its callers do."""
    from dinorankclip.types import UserError

    def reading(folder: Path) -> Any:
        try:
            value = read(folder)
        except _Anew as error:
            raise UserError(f"made anew: {error}") from None
        if value in (None, {}, []):
            raise UserError("nothing is known, and made anew")
        return value

    return reading


def _rows(folder: Path) -> Any:
    store = RowStore(folder / "rows", 4, {"model": "x"})
    if store.missing():  # removed as damaged: computed again
        store.write(range(4), np.eye(4, 8, dtype=np.float32), np.full(4, -1, np.int8))
    return store.causes.tolist(), store.rows().shape


def project_kinds(old: bool = False) -> list[Kind]:
    """Return all kinds of files that the project itself writes."""
    return [kind._replace(checked=kind.heals or not old) for kind in _kinds()]


def _kinds() -> list[Kind]:
    step = "run/checkpoints/step-3"
    return [
        Kind("run/config.json", _run),
        Kind("run/environment.json", _run),
        Kind("run/metrics.jsonl", _run),
        Kind("run/scores.json", _scored),
        Kind("run/scores_items.npz", lambda folder: read_items(folder / "run")),
        Kind("scored/scores_items.npz", _quietly(lambda folder: sorted(_read_or_begin(folder / "scored")[1]))),
        Kind("run/fusion.json", _fusion),
        Kind("run/before.json", lambda folder: read_sealed(folder / "run" / run_files.BEFORE, named(NUMBER))),
        Kind("run/examples.json", lambda folder: read_examples(folder / "run")),
        Kind(f"{step}/training.json", _run),
        Kind(f"{step}/training.safetensors", lambda folder: spending(folder / "run")),
        Kind(f"{step}/model.json", _model),
        Kind("exported/model.json", _exported),
        Kind("exported/vocabulary.json", _exported),
        Kind("exported/provenance.json", _exported),
        Kind("exported/model.safetensors", _exported),
        Kind("trunk/open_clip_config.json", _trunk),
        Kind("cache/plan.json", _run),
        Kind("cache/manifest.json", _cache),
        Kind("cache/train.keys.npy", _cache),
        Kind("cache/train-00000.bin", _cache),
        Kind("embedded/manifest.json", _collection),
        Kind("study/results.json", _study),
        Kind("index.npz", _index_table, heals=True),
        Kind(PHOTO_INDEX, _quietly(_photo_index)),
        Kind(QUERIES, _quietly(lambda folder: sorted(QueryMemo(folder / QUERIES)._rows))),
        Kind(FACTS, _quietly(lambda folder: _read_facts(folder / "photos", "key"))),
        Kind("rows/causes.npy", _rows),
        Kind("rows/rows.npy", _rows, heals=True),
    ]
