import json
import shutil
from functools import partial

import numpy as np
import pytest

from dinorankclip.commands.compare import compare
from dinorankclip.commands.shared import call_verb
from dinorankclip.evaluate.scores_file import compare_scores, read_scores
from dinorankclip.types import UserError
from tests.train.test_cost import of, write_run

main = partial(call_verb, compare, "compare")
TRAINED = {
    "val/i2t R@1": 0.21,
    "val/t2i R@1": 0.15,
    "val/mean R@1": 0.18,
    "val/chance R@1": 0.001,
    "val/images": 1000.0,
}


def trained(folder, method="clip", shift=0.0, **changes):
    """A run that has only what `train` wrote."""
    run = write_run(folder, of(method, **changes))
    scores = {name: value + shift * ("R@1" in name and "chance" not in name) for name, value in TRAINED.items()}
    (run / "scores.json").write_text(json.dumps({"step": 100, "scores": scores}))
    return run


def scored(folder, hits, fingerprint="f", version=1, name="photos", images=None):
    """What `score` writes: scores.json and the items beside it."""
    folder.mkdir(exist_ok=True)
    known = json.loads((folder / "scores.json").read_text()) if (folder / "scores.json").exists() else {}
    hits = np.asarray(hits, float)
    entry = {"value": hits.mean(), "version": version, "unit": "share", "chance": 0.1}
    angle = {"value": 60.0, "version": 1, "unit": "degrees"}
    known["sets"] = known.get("sets", {}) | {
        name: {"fingerprint": fingerprint, "scores": {"t2i R@1": entry, "cone separation": angle}}
    }
    (folder / "scores.json").write_text(json.dumps(known))
    clusters = np.arange(len(hits)) if images is None else images
    np.savez(folder / "scores_items.npz", **{f"{name}/t2i R@1": hits, f"{name}/t2i R@1#clusters": clusters})
    return folder


def test_runs_that_were_only_trained_stand_side_by_side(tmp_path, capsys):
    main([str(trained(tmp_path / "a")), str(trained(tmp_path / "b", "rank", shift=0.02))])
    out = capsys.readouterr().out
    assert "rank, order 3" in out and "12,800" in out and "matched: same data" in out
    line = next(line for line in out.splitlines() if "image → text" in line)
    assert line.split() == ["val", "image", "→", "text", "R@1", "0.10", "21.00", "23.00", "+2.00"]
    assert "Without intervals" in out and "images" not in out.replace("clustered by image", "")


def with_items(run, held_out, hits):
    """The items of what `train` scored, and which data they are of."""
    stored = json.loads((run / "scores.json").read_text())
    (run / "scores.json").write_text(json.dumps(stored | ({"held_out": {"val": held_out}} if held_out else {})))
    np.savez(run / "scores_items.npz", **{"val/i2t R@1": np.asarray(hits, float)})
    return str(run)


def test_items_that_train_kept_are_paired_if_they_are_of_the_same_data(tmp_path, capsys):
    hits = np.arange(100) < 40
    a = with_items(trained(tmp_path / "a"), "f", hits)
    same = with_items(trained(tmp_path / "same", shift=0.02), "f", np.arange(100) < 80)
    main([a, same])
    line = next(line for line in capsys.readouterr().out.splitlines() if "image → text" in line)
    assert "higher" in line
    unknown = with_items(trained(tmp_path / "unknown"), None, ~hits)
    main([unknown, with_items(trained(tmp_path / "unknown-too"), None, hits)])
    assert "Without intervals" in capsys.readouterr().out
    main([a, unknown])  # as likely the same data as not: values, no intervals
    assert "Without intervals" in capsys.readouterr().out
    other = with_items(trained(tmp_path / "other"), "g", ~hits)
    with pytest.raises(SystemExit, match="1"):
        main([a, other])
    assert "NOT compared: val: the data differs" in capsys.readouterr().err


def test_budgets_that_differ_are_flagged_and_refused_on_request(tmp_path, capsys):
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b", "rank", seed=3)
    main([str(a), str(b)])
    out = capsys.readouterr().out
    assert "NOT MATCHED" in out and "seed: 0 → 3" in out
    with pytest.raises(UserError, match="seed: 0 → 3"):
        main([str(a), str(b), "--matched"])


def test_runs_of_equal_time_say_so(tmp_path, capsys):
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b", "rank")
    for run, steps in ((a, 100), (b, 80)):
        stored = json.loads((run / "config.json").read_text())
        stored["budget"] |= {"minutes": 2.0, "steps": steps}
        (run / "config.json").write_text(json.dumps(stored))
        (run / "scores.json").write_text(json.dumps(json.loads((run / "scores.json").read_text()) | {"step": steps}))
    main([str(a), str(b), "--matched"])
    assert "matched by time, 2 minutes each: same data, seed, batch, trunk and schedule" in capsys.readouterr().out


def test_a_teacher_on_one_side_is_said(tmp_path, capsys):
    main([str(trained(tmp_path / "a")), str(trained(tmp_path / "b", "dinorankclip"))])
    assert "but only B has a teacher" in capsys.readouterr().out


def test_items_give_intervals_and_a_verdict(tmp_path, capsys):
    easy = np.random.default_rng(0).random(2000)
    a, b = scored(tmp_path / "a", easy < 0.3), scored(tmp_path / "b", easy < 0.34)
    traded = easy < 0.3
    traded[[*np.flatnonzero(traded)[:20], *np.flatnonzero(~traded)[:20]]] ^= True  # as many hits lost as won
    c = scored(tmp_path / "c", traded)
    main([str(a), str(b)])
    out = capsys.readouterr().out
    assert "nothing is known of the training" in out
    line = next(line for line in out.splitlines() if "text → image" in line)
    difference = 100 * (np.mean(easy < 0.34) - np.mean(easy < 0.3))
    assert f"{difference:+.2f}" in line and "2,000" in line and line.endswith("higher") and "10.00" in line
    assert next(line for line in out.splitlines() if "cone" in line).endswith("+0.00°")  # no items, no interval
    main([str(b), str(a)])
    assert "lower" in capsys.readouterr().out
    main([str(a), str(c)])
    assert "no difference shown (it would take 0." in capsys.readouterr().out


def test_a_set_scored_on_other_data_is_not_compared_the_others_are(tmp_path, capsys):
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b")
    scored(a, np.ones(10), fingerprint="one"), scored(b, np.ones(10), fingerprint="two")
    with pytest.raises(SystemExit) as end:
        main([str(a), str(b)])
    reported = capsys.readouterr()
    assert (
        end.value.code == 1
        and "NOT compared: photos: the data differs" in reported.err
        and "image → text" in reported.out
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"version": 2}, "scorer versions 1 and 2"),
        ({"hits": np.ones(9)}, "the items differ"),
        ({"images": np.arange(10) % 5}, "the items differ"),  # neither joins clusters of the other
    ],
)
def test_other_scorers_and_items_are_refused(tmp_path, capsys, other, reason):
    a = scored(tmp_path / "a", np.ones(10), images=np.arange(10) // 2)
    b = scored(tmp_path / "b", **({"hits": np.ones(10), "images": np.arange(10) // 2} | other))
    with pytest.raises(SystemExit):
        main([str(a), str(b)])
    assert reason in capsys.readouterr().err


def test_the_larger_clusters_of_two_scores_are_drawn(tmp_path):
    """Scores of before images with the same captions were joined stay comparable, with the wider interval."""
    hits = np.repeat([1.0, 0.0, 1.0, 0.0], 10)
    a = scored(tmp_path / "a", np.zeros(40))
    spans = []
    for name, images in (("b", np.arange(40)), ("c", np.arange(40) // 10)):
        rows, refused = compare_scores(
            read_scores(a), read_scores(scored(tmp_path / name, hits, images=images)), 0.95, 1000
        )
        assert not refused and rows[0].difference is not None
        spans.append(rows[0].difference.high - rows[0].difference.low)
    assert spans[1] > 2 * spans[0]


def test_sets_that_only_one_was_scored_on_are_named(tmp_path, capsys):
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b")
    scored(a, np.ones(10), name="birds")
    main([str(a), str(b)])
    assert "only one of the two was scored on birds" in capsys.readouterr().out


def test_a_model_that_is_no_run_is_found_where_score_put_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "built" / "scores").mkdir(parents=True)
    scored(tmp_path / "built" / "scores" / "open-clip-ViT-B-32", np.ones(10))
    scored(tmp_path / "a", np.zeros(10))
    main(["a", "open_clip:ViT-B-32"])
    assert "built/scores/open-clip-ViT-B-32" in capsys.readouterr().out


def test_scores_of_earlier_weights_are_marked(tmp_path, capsys):
    a, b = (scored(trained(tmp_path / name), np.ones(40)) for name in "ab")
    for run, step in ((a, 60), (b, 100)):
        stored = json.loads((run / "scores.json").read_text())
        (run / "scores.json").write_text(json.dumps(stored | {"sets_model": {"step": step}}))
    main([str(a), str(b)])
    out = capsys.readouterr().out
    assert "note: sets of A were scored at step 60; the run has gone on since" in out and "sets of B" not in out
    shutil.rmtree(a / "checkpoints")  # as studies do: nothing is known of what came after
    main([str(a), str(b)])
    assert "note:" not in capsys.readouterr().out


def test_mistakes_are_explained(tmp_path):
    a = trained(tmp_path / "a")
    with pytest.raises(UserError, match=r"no scores of .*nowhere"):
        main([str(a), str(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="let its training end"):
        main([str(a), str(tmp_path / "empty")])
    scored(tmp_path / "c", np.ones(4))
    with pytest.raises(UserError, match="no score in common"):
        main([str(a), str(tmp_path / "c")])
    with pytest.raises(UserError, match="between 0 and 1"):
        main([str(a), str(a), "--level", "95"])
    with pytest.raises(UserError, match="at least 1999 draws"):
        main([str(a), str(a), "--level", "0.9995"])
    (tmp_path / "c" / "scores_items.npz").write_bytes(b"PK nothing")
    with pytest.raises(UserError, match=r"scores_items\.npz is damaged"):
        main([str(tmp_path / "c"), str(tmp_path / "c")])
    (a / "scores.json").write_text("{")
    with pytest.raises(UserError, match=r"scores\.json is damaged"):
        main([str(a), str(a)])


def with_curve(run, scores):
    """Validation scores after 10, 20, … core-seconds."""
    lines = [
        {"step": at, "core-seconds": 10.0 * at, "val/mean R@1": score, "val/chance R@1": 0.001}
        for at, score in enumerate(scores, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_several_runs_stand_in_one_table(tmp_path, capsys):
    runs = [with_curve(trained(tmp_path / name, shift=shift), (0.1, 0.2 + shift)) for name, shift in
            (("first", 0.0), ("second", 0.02), ("third", -0.01))]  # fmt: skip
    picture = tmp_path / "pictures" / "curves.png"
    main([*map(str, runs), "--picture", str(picture)])
    lines = capsys.readouterr().out.splitlines()
    cost = next(line for line in lines if line.startswith("second"))
    assert cost.split() == ["second", "clip", "muon", "12,800", "20"]
    found = {line.split()[0]: line.split()[1:] for line in lines[lines.index("") :] if line}
    assert found["first"] == ["21.00", "15.00"] and found["chance"] == ["0.10"]
    assert found["second"] == ["23.00", "+2.00", "17.00", "+2.00"]
    assert found["third"] == ["20.00", "-1.00", "14.00", "-1.00"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_several_runs_refuse_what_they_cannot_do(tmp_path):
    a, b, c = (str(trained(tmp_path / name)) for name in "abc")
    with pytest.raises(UserError, match="name two"):
        main([a, b, c, "--matched"])
    with pytest.raises(UserError, match=r"must end with .png or .svg"):
        main([a, b, "--picture", "curves.gif"])
