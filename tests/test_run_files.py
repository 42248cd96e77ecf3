import json
import re
from pathlib import Path

import pytest

from dinorankclip.checksums import CHECKSUM, sealed, sealed_line
from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.io import write_json
from dinorankclip.run_files import (
    data_at_hand,
    data_of,
    gate_name,
    inert_orders,
    inert_words,
    is_inert,
    last_spreads,
    logged_orders,
    read_environment,
    read_fusion,
    read_metrics,
    read_numbers,
    read_settings,
    refuse_command,
    runs_behind,
    spread_name,
    stored_scores,
)
from dinorankclip.types import UserError

LINES = [
    {"step": 10, "loss": 5.0, "spread2_image": 0.2, "spread2_text": 0.1},
    {"step": 20, "loss": 4.0, "spread2_image": 0.1, "spread2_text": 0.3, "spread3_image": 5e-4, "spread3_text": 2e-3},
    {"step": 30, "loss": 3.0, "spread3_image": 9e-4, "spread3_text": 8e-4},
    {"step": 30, "val/mean R@1": 0.1},
]


def test_the_last_spread_decides(tmp_path):
    half_written = '{"step": 40, "spread3_image": 5'
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + half_written)
    assert last_spreads(tmp_path) == {2: 0.3, 3: 9e-4}
    assert inert_orders(tmp_path) == [3]
    assert inert_words([3]) == "order 3 inert" and inert_words([4, 5]) == "orders 4 and 5 inert"


def test_without_a_log_nothing_is_said(tmp_path):
    assert inert_orders(tmp_path) == [] and inert_words([]) == ""


def test_names_are_made_and_read_in_one_place():
    names = [spread_name(2, "image"), spread_name(12, "text"), gate_name(3, "image"), "spread", "spreads_image", "loss"]
    assert logged_orders(names) == [2, 12]
    assert is_inert(9e-4) and not is_inert(1e-3)


def test_a_damaged_log_loses_its_damaged_lines_alone(tmp_path):
    """A byte that is no UTF-8 ended every command that reads the log."""
    good = b'{"step": 1, "loss": 2.0}\n'
    damaged = (
        b'\xff{"step": 2}\n[1]\n"x"\n{"loss": 3}\n{"step": "4"}\n{"step": 5, "loss": []}\n' + b"[" * 99_999 + b"\n"
    )
    (tmp_path / "metrics.jsonl").write_bytes(good + damaged + b'{"step": 6, "loss": NaN}\n')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 6]


def test_relative_data_are_found_from_another_folder(tmp_path, monkeypatch):
    """A run that was begun as runs/first in one folder, looked at from another one."""
    run = tmp_path / "work" / "runs" / "first"
    run.mkdir(parents=True)
    write_json(run / "config.json", sealed(as_dict(TrainSettings(data="pairs", run="runs/first"))))
    assert data_of(run) == "pairs", "they are nowhere"
    (tmp_path / "work" / "pairs").mkdir()
    assert data_of(run) == str(tmp_path / "work" / "pairs") and data_at_hand(str(run))
    monkeypatch.chdir(tmp_path / "work")
    assert data_of(Path("runs/first")) == "pairs"
    monkeypatch.chdir(tmp_path)
    run.rename(tmp_path / "moved")
    assert data_of(tmp_path / "moved") == "pairs"


def test_a_chain_of_runs_is_followed_from_another_folder(tmp_path, monkeypatch):
    """runs/mine was fine-tuned from runs/first, both begun in work/."""
    for name, init in (("first", None), ("mine", "runs/first")):
        run = tmp_path / "work" / "runs" / name
        run.mkdir(parents=True)
        write_json(run / "config.json", sealed(as_dict(TrainSettings(run=f"runs/{name}", init=init))))
    monkeypatch.chdir(tmp_path)
    found, whole = runs_behind("work/runs/mine")
    assert [run.name for run in found] == ["mine", "first"] and whole


def test_an_emptied_log_is_noticed_beside_checkpoints(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").touch()
    assert read_metrics(tmp_path) == [] and caplog.text == ""
    (tmp_path / "checkpoints").mkdir()
    assert read_metrics(tmp_path) == [] and "it may have lost its lines" in caplog.text


def test_a_changed_number_in_the_log_is_left_out_aloud(tmp_path, caplog):
    lines = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": float("inf")}, {"step": 3, "loss": 1e-7, "pairs/s": 12}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(sealed_line, lines)))
    assert read_metrics(tmp_path) == lines and caplog.text == ""
    path.write_text(path.read_text().replace("2.5", "3.5"))
    assert read_metrics(tmp_path) == lines[1:]
    assert f"{path}: 1 lines are cut or damaged, and left out" in caplog.text
    caplog.clear()
    path.write_text(path.read_text().replace("3.5", "2.5") + '{"step": 4, "lo')  # a kill
    assert read_metrics(tmp_path) == lines and "1 lines are cut" in caplog.text
    first, second, third = map(sealed_line, lines)
    merged = second[: second.index("crc32") - 1] + third[1:]
    # A line without text, one without its CRC, two that have become one.
    for damaged in (f"{first}\n{third}", first + '{"step": 2}\n' + third, first + merged + third):
        caplog.clear()
        path.write_text(damaged)
        assert read_metrics(tmp_path) == [lines[0], lines[2]] and "1 lines are cut" in caplog.text
    caplog.clear()
    path.write_text('{"step": 1, "loss": 2.5}\n' + second + third)  # begun by version 0.1, which wrote none
    assert read_metrics(tmp_path) == lines and caplog.text == ""


@pytest.mark.parametrize(
    ("name", "read"),
    [("config.json", read_settings), ("environment.json", read_environment), ("fusion.json", read_fusion)],
)
def test_changed_numbers_of_a_run_are_refused(tmp_path, name, read):
    quantiles = dict.fromkeys(("mean", "5 %", "median", "95 %", "max"), 0.5)
    branch = dict.fromkeys(("angle", "bound", "gate"), quantiles) | {"share at ratio >= 1": 0.5}
    contents = {
        "config.json": as_dict(TrainSettings()),
        "environment.json": {"python": "3.11", "cores": 2},
        "fusion.json": {"start": {"image": branch}},
    }
    path = tmp_path / name
    write_json(path, sealed(contents[name]))
    assert read(tmp_path) == json.loads(json.dumps(contents[name]))
    text = path.read_text()
    places = [at for at in range(len(text)) if text[at].isdigit() and text[:at].count(CHECKSUM) == 0]
    for at in places[:: max(1, len(places) // 20)]:
        path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
        with pytest.raises(UserError, match=re.escape(str(path))):
            read(tmp_path)
    entries = json.loads(text)
    entries.pop(CHECKSUM)  # as an older version wrote it, or somebody who edits it
    path.write_text(json.dumps(entries))
    assert read(tmp_path) == entries


@pytest.mark.parametrize(
    ("name", "content", "read", "words"),
    [
        ("environment.json", {"gpus": 3}, read_environment, "gpus is 3, and a list of text"),
        ("scores.json", {"sets": {"a": {"scores": {"m": {}}}}}, stored_scores, "sets.a.scores.m lacks value"),
        ("scores.json", {"scores": {"val/i2t R@1": "x"}}, stored_scores, "scores.val/i2t R@1 is 'x', and a number"),
        ("fusion.json", {"start": {"image": {}}}, read_fusion, "start.image lacks angle"),
        ("training.json", {"step": -1}, read_numbers, "step is -1"),
    ],
)
def test_wrong_types_are_refused_in_words(tmp_path, name, content, read, words):
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=re.escape(words)):
        read(tmp_path)


def test_settings_of_wrong_types(tmp_path):
    settings = as_dict(TrainSettings())
    for change, words in (
        ({"budget": {"batch": "x", "epochs": 3}}, "budget.batch is 'x'"),
        ({"loss": {}}, "lacks order"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(settings | change))
        with pytest.raises(UserError, match=words):
            read_settings(tmp_path)


def test_commands_of_a_stored_run_are_not_run(tmp_path):
    settings = as_dict(TrainSettings()) | {"data": f"pipe:touch {tmp_path}/canary"}
    with pytest.raises(UserError, match="never executed"):
        refuse_command(settings["data"], tmp_path)
