"""The whole objective (`--method dinorankclip`), and what is left of it when its parts are switched off."""

import json

import pytest
import torch

from dinorankclip.commands.train import parse, run
from dinorankclip.config import UNGATED
from dinorankclip.models.folder import load_folder
from dinorankclip.presets import for_method, preset
from dinorankclip.train.assemble import build_model
from tests.models.features import ConstantGate
from tests.train.running import settings_from, small_pairs

QUICK = ["--preset", "scenes", "--model.trunk", "drc-tiny", "--budget.batch", "16", "--budget.epochs", "1"]
QUICK += ["--budget.threads", "1", "--record.no-tensorboard", "--record.log-every", "1"]
TEACHERS = ["--distil.teacher", "random-vit", "--distil.text-teacher", "random-text", "--distil.teacher-size", "64"]
OFF = ["--distil.cache", "none", "--fusion.variant", "none"]
VARIANTS = ("concat", "additive", "single-scale", "spp", "spp-cbam", "full")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=48, val=8)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the cache of `auto` goes under built/


def trained(pairs, name, *flags):
    settings, restart, dry = parse([*QUICK, "--data", str(pairs), "--run", name, *flags])
    run(settings, restart, dry)
    return load_folder(name)


def equal(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_one_command_runs_everything(pairs, tmp_path, capsys):
    model = trained(pairs, "whole", "--method", "dinorankclip", *TEACHERS)
    assert model.fusion.variant == "full" and model.fusion.gate
    assert model.students.image == model.students.text == "vit-micro"
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    terms = {name for name in lines[-2] | lines[-1] if name.startswith("loss/")}
    distilled = {f"loss/{term}_{branch}" for term in ("gram", "relational") for branch in ("image", "text")}
    assert distilled | {"loss/contrastive"} < terms
    assert any("in" in name and "rank" in name for name in terms) and any("cross" in name for name in terms)
    reported = json.loads((tmp_path / "whole" / "fusion.json").read_text())
    for branch in ("image", "text"):
        start, end = reported["start"][branch], reported["end"][branch]
        assert start["angle"]["mean"] < 2 and start["gate"]["mean"] == pytest.approx(0.018, abs=0.002)
        assert end["angle"]["max"] <= end["bound"]["max"] and end["share at ratio >= 1"] == 0
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    made = tmp_path / config["distil"]["cache"]
    assert made.parent == tmp_path / "built" / "teacher" and (made / "manifest.json").is_file()
    capsys.readouterr()
    trained(pairs, "again", "--method", "dinorankclip", *TEACHERS)
    assert "caching" not in capsys.readouterr().out  # the second run finds the cache
    assert equal(model, load_folder("again"))


def test_order_one_without_its_parts_is_rankclip_bit_for_bit(pairs):
    theirs = trained(pairs, "theirs", "--method", "rankclip")
    assert equal(trained(pairs, "ours", "--method", "dinorankclip", *OFF, "--loss.order", "1"), theirs)


def test_order_nought_without_its_parts_is_clip_bit_for_bit(pairs):
    theirs = trained(pairs, "theirs", "--method", "clip")
    assert equal(trained(pairs, "ours", "--method", "dinorankclip", *OFF, "--loss.order", "0"), theirs)


@pytest.mark.parametrize(
    ("variant", "gate"),
    [(name, True) for name in VARIANTS] + [(name, False) for name in VARIANTS if name not in UNGATED],
)
def test_every_variant_trains_and_comes_back_from_its_folder(pairs, variant, gate):
    flags = ["--method", "dinorankclip", "--distil.cache", "none", "--fusion.variant", variant]
    model = trained(pairs, "run", *flags, *([] if gate else ["--fusion.no-gate"])).eval()
    assert (model.fusion.variant, model.fusion.gate) == (variant, gate)
    start = build_model(settings_from(*QUICK, *flags, *([] if gate else ["--fusion.no-gate"])))
    fresh, now = dict(start.named_parameters()), dict(model.named_parameters())
    still = [name for name in fresh if "fusion" in name and torch.equal(fresh[name], now[name])]
    assert not still, still  # everything in the fusion learns
    images = torch.randint(0, 256, (4, 3, 48, 48), dtype=torch.uint8)
    again = load_folder("run").eval()
    assert torch.equal(model.encode_image(images), again.encode_image(images))


def test_students_and_fusion_leave_the_trunk_where_it_starts():
    plain = build_model(for_method(preset("scenes"), "clip")).trunk.state_dict()
    settings = settings_from(*QUICK, "--method", "dinorankclip", "--distil.cache", "none")
    fused = build_model(settings)
    assert all(torch.equal(plain[name], value) for name, value in fused.trunk.state_dict().items())


def test_a_gate_at_nought_gives_the_trunk_bit_for_bit():
    settings = settings_from(*QUICK, "--method", "dinorankclip", "--distil.cache", "none")
    model = build_model(settings).eval()
    images = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)
    texts = torch.randint(1, 400, (3, 9))
    texts[:, -1] = 49407
    model.image_fusion.gate = model.text_fusion.gate = ConstantGate(0.0)
    with torch.inference_mode():
        pixels = model.normalised(images)
        assert torch.equal(model.see(pixels).raw, model.trunk.encode_image(pixels))
        assert torch.equal(model.read(texts).raw, model.trunk.encode_text(texts))


def test_a_caption_is_read_alike_whatever_stands_beside_it():
    settings = settings_from(*QUICK, "--method", "dinorankclip", "--distil.cache", "none")
    model = build_model(settings).eval()
    for fusion in (model.image_fusion, model.text_fusion):  # an open gate, or the fusion could not be seen
        fusion.gate = ConstantGate(0.7)
    context = model.trunk.text_spec.context_length
    lengths = [n for n in (1, 2, 3, 7, 8, 20, 75) if n + 2 <= context] + [context - 2]
    for words in lengths:
        ids = torch.randint(1, 49000, (1, words + 2), generator=torch.Generator().manual_seed(words))
        ids[0, 0], ids[0, -1] = 49406, 49407
        alone = model.encode_text(ids)
        for total in {min(context, words + 2 + extra) for extra in (1, 5, context)}:
            batch = torch.zeros(3, total, dtype=torch.long)
            batch[1, : words + 2] = ids
            batch[0, :2] = batch[2, :2] = torch.tensor([49406, 49407])
            assert (model.encode_text(batch)[1] - alone[0]).abs().max() < 1e-6


def test_dry_run_of_the_papers_preset_needs_no_teacher(pairs, capsys):
    flags = ["--preset", "cc3m", "--method", "dinorankclip", "--data", str(pairs), "--model.trunk", "drc-tiny"]
    settings, restart, _ = parse([*flags, "--budget.batch", "8", "--budget.threads", "1", "--reading.workers", "1"])
    run(settings, restart, True)
    reported = capsys.readouterr().out
    assert "(paper (projected): 5.7)" in reported and "image_fusion" in reported
    assert "stand-ins of timm:vit_large_patch16_dinov3's shape" in reported


def test_dry_run_tells_of_the_cache_that_comes_first(pairs, capsys, tmp_path):
    settings, restart, _ = parse([*QUICK, "--method", "dinorankclip", "--data", str(pairs)])
    run(settings, restart, True)
    reported = capsys.readouterr().out
    # 48 training images with two captions each; of the 8 for validation and the 8 for testing one caption each
    assert "the teacher's features of 64 images and about 112 captions" in reported
    assert "would be cached in built/teacher/" in reported and not (tmp_path / "built" / "teacher").exists()
    assert "stand-ins of efficientnet-lite0's shape" in reported
