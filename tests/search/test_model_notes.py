"""The checkpoint behind a name, and what held-out scores say."""

import json

from dinorankclip.io import point
from dinorankclip.search.model_notes import HeldOutShare, checkpoint_note, held_out_share


def run_of(folder, found=0.35, step=186, photos=1000):
    (folder / "checkpoints" / f"step-{step}").mkdir(parents=True)
    point(folder / "checkpoints" / "last", f"step-{step}")
    (folder / "checkpoints" / "last" / "training.json").write_text(json.dumps({"step": step}))
    scores = {"test/t2i R@10": found, "test/images": float(photos), "val/t2i R@10": 0.9, "val/images": 10.0}
    (folder / "scores.json").write_text(json.dumps({"step": step, "scores": scores}))
    return folder


def test_a_run_is_its_last_checkpoint(tmp_path):
    run = run_of(tmp_path / "run")
    assert checkpoint_note(str(run)) == f"{run}: step 186 (checkpoints/step-186)"
    inside = run / "checkpoints" / "step-186"
    assert checkpoint_note(str(inside)) == f"{inside}: step 186"
    assert checkpoint_note("open_clip:ViT-B-32:w.pt") == checkpoint_note(str(tmp_path)) == ""
    (tmp_path / "export").mkdir()
    known = {"step": 9, "scores": {"values": {"val/t2i R@10": 0.5, "val/images": 100}}}
    (tmp_path / "export" / "provenance.json").write_text(json.dumps(known))
    assert checkpoint_note(str(tmp_path / "export")).endswith("exported from step 9")
    assert held_out_share(str(tmp_path / "export")) == HeldOutShare(0.5, 100)


def test_scores_of_a_blend_are_not_those_of_its_checkpoints(tmp_path):
    run = run_of(tmp_path / "run")
    stored = json.loads((run / "scores.json").read_text())
    assert held_out_share(str(run / "checkpoints" / "step-186")) == held_out_share(str(run))
    (run / "scores.json").write_text(json.dumps(stored | {"chosen": {"alpha": 0.4}}))
    (run / "checkpoints" / "chosen").mkdir()
    (run / "checkpoints" / "chosen" / "training.json").write_text(json.dumps({"step": 186}))
    assert held_out_share(str(run / "checkpoints" / "step-186")) is None
    assert held_out_share(str(run / "checkpoints" / "chosen")) == held_out_share(str(run)) == HeldOutShare(0.35, 1000)


def test_scores_of_an_early_stopped_run_are_those_of_the_chosen_checkpoint(tmp_path):
    """The chosen weights are those of step 100, and the scores were taken after step 186."""
    run = run_of(tmp_path / "run")
    stored = json.loads((run / "scores.json").read_text())
    (run / "scores.json").write_text(json.dumps(stored | {"chosen": {"checkpoint": "step-100"}}))
    (run / "checkpoints" / "chosen").mkdir()
    (run / "checkpoints" / "chosen" / "training.json").write_text(json.dumps({"step": 100}))
    assert held_out_share(str(run / "checkpoints" / "chosen")) == HeldOutShare(0.35, 1000)
    assert held_out_share(str(run / "checkpoints" / "step-186")) is None


def test_the_test_part_is_preferred_and_chance_is_noticed(tmp_path):
    share = held_out_share(str(run_of(tmp_path / "good")))
    assert share == HeldOutShare(0.35, 1000) and not share.at_chance
    assert share.words() == "3.5 of 10 held-out captions found their photo among the first ten of 1000"
    assert held_out_share(str(run_of(tmp_path / "bad", 0.012))).at_chance
    assert HeldOutShare(0.7, 16).at_chance and not HeldOutShare(0.05, 1000).at_chance
    assert held_out_share(str(tmp_path)) is None


def test_scores_of_another_step_are_not_those_of_a_checkpoint(tmp_path):
    run = run_of(tmp_path / "run")
    older = run / "checkpoints" / "step-100"
    older.mkdir()
    (older / "training.json").write_text(json.dumps({"step": 100}))
    assert held_out_share(str(older)) is None
    assert held_out_share(str(run / "checkpoints" / "last")) == HeldOutShare(0.35, 1000)
