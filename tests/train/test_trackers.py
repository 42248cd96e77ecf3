"""Trackers: each one's curves, read back from its own files, are those of metrics.jsonl; failures do not stop a run.

wandb (offline) and mlflow (files) are the packages themselves where they are installed. trackio forces an older Pillow
than this project pins, so a module with the same calls stands in for it.
"""

import importlib.util
import json
import struct
import sys
from types import ModuleType, SimpleNamespace

import pytest

import dinorankclip
from dinorankclip import io
from dinorankclip.config import RecordSettings
from dinorankclip.run_files import read_metrics
from dinorankclip.train import trackers
from dinorankclip.train.trackers import TRACKERS, TrackedRun, Trackers, chosen_trackers, mlflow_name
from dinorankclip.types import UserError
from tests.api.making import TINY, pairs

Curves = dict[str, dict[int, float]]  # name → step → value


@pytest.fixture(autouse=True)
def kept_here(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed (extra trackers)")


def logged(run) -> Curves:
    """The curves of metrics.jsonl."""
    curves: Curves = {}
    for line in read_metrics(run):
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                curves.setdefault(name, {})[line["step"]] = value
    return curves


def tracked(tmp_path, *names):
    record = TINY["record"] | {"trackers": list(names)}
    return dinorankclip.train(TINY | {"record": record}, data=pairs(), run=tmp_path / "run").folder


def test_tensorboard_has_the_curves_of_the_log(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked(tmp_path, "tensorboard")
    events = EventAccumulator(str(run / "tensorboard"), {"scalars": 0}).Reload()
    found = {name: {each.step: each.value for each in events.Scalars(name)} for name in events.Tags()["scalars"]}
    as_float32 = {
        name: {step: struct.unpack("f", struct.pack("f", value))[0] for step, value in curve.items()}
        for name, curve in logged(run).items()
    }
    assert found == as_float32 and len(found["loss"]) == 4 and "val/mean R@1" in found


def wandb_curves(run) -> Curves:
    """Read the history of an offline run: records of protobuf in blocks of 32 KiB, as LevelDB writes its log."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    data, at, whole, curves = file.read_bytes(), 7, b"", {}
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the end of one
            record = Record.FromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                for name, value in items.items():
                    if not name.startswith("_"):
                        curves.setdefault(name, {})[items["_step"]] = value
    return curves


@needs("wandb")
def test_wandb_offline_has_the_curves_of_the_log(tmp_path):
    run = tracked(tmp_path, "wandb")
    assert wandb_curves(run) == logged(run)
    assert set(json.loads((run / "trackers.json").read_text())) == {"wandb"}


@needs("mlflow")
def test_mlflow_files_have_the_curves_of_the_log(tmp_path):
    from mlflow import MlflowClient

    run = tracked(tmp_path, "mlflow")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    (stored,) = client.search_runs([client.get_experiment_by_name("dinorankclip").experiment_id])
    assert stored.info.status == "FINISHED" and stored.data.params["budget.batch"] == "16"
    expected = {mlflow_name(name): curve for name, curve in logged(run).items()}
    found = {
        name: {metric.step: metric.value for metric in client.get_metric_history(stored.info.run_id, name)}
        for name in stored.data.metrics
    }
    assert found == expected and {"loss/total", "val/mean R_at_1"} <= set(found)


class FakeTrackio(ModuleType):
    """The calls of trackio 0.43 that the tracker makes; a run writes its lines to memory."""

    def __init__(self):
        super().__init__("trackio")
        self.runs, self.finished = [], 0

    def init(self, project, name, config, resume, embed, auto_log_cpu, auto_log_gpu):
        self.runs.append((project, name, config, resume, embed))
        self.lines = []
        return SimpleNamespace(log=lambda metrics, step: self.lines.append((step, dict(metrics))), finish=self.finish)

    def finish(self):
        self.finished += 1


def test_trackio_gets_the_curves_of_the_log(tmp_path, monkeypatch):
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    run = tracked(tmp_path, "trackio")
    ((project, name, config, resume, _),) = fake.runs
    assert (project, name, config["budget.batch"], resume, fake.finished) == ("dinorankclip", "run", 16, "allow", 1)
    curves: Curves = {}
    for step, numbers in fake.lines:
        for number, value in numbers.items():
            curves.setdefault(number, {})[step] = value
    assert curves == logged(run)


def test_a_tracker_that_fails_is_reported_once_and_left_out(tmp_path, monkeypatch, capsys):
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)

    def failing(step, numbers):
        raise ConnectionError("no route to the server")

    class Failing:
        def __init__(self, run):
            self.log, self.close = failing, lambda: None

    monkeypatch.setitem(TRACKERS, "tensorboard", trackers.TrackerKind("tensorboard", "tensorboard", Failing))
    run = tracked(tmp_path, "tensorboard", "trackio")
    shown = capsys.readouterr().out
    assert shown.count("note: tensorboard failed (ConnectionError: no route to the server) and is left out") == 1
    assert len(fake.lines) == len(read_metrics(run)) and fake.finished == 1


def test_a_tracker_that_does_not_open_or_close_harms_nothing(tmp_path, monkeypatch):
    class Stubborn:
        def __init__(self, run):
            raise RuntimeError("not logged in")

    class Sticky:
        def __init__(self, run):
            self.log = lambda step, numbers: None

        def close(self):
            raise OSError("still uploading")

    for name, kind in (("wandb", Stubborn), ("mlflow", Sticky)):
        monkeypatch.setitem(TRACKERS, name, trackers.TrackerKind(name, name, kind))
    notes = []
    several = Trackers(("wandb", "mlflow"), TrackedRun(tmp_path, "p", {}, 0), notes.append)
    assert several.names == ("mlflow",)
    several.log(1, {"loss": 1.0, "word": "no number"})
    several.close()
    assert ["not logged in" in notes[0], "still uploading" in notes[1], len(notes)] == [True, True, 2]


def test_a_missing_package_is_named_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "trackio", trackers.TrackerKind("no_such_module", "trackio", trackers.Trackio))
    with pytest.raises(UserError, match=r"--record.trackers trackio needs .* missing: pip install trackio"):
        tracked(tmp_path, "trackio")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"--record.trackers wanbd: there are tensorboard, wandb, mlflow, trackio"):
        chosen_trackers(RecordSettings(trackers=("wanbd",)))


def test_old_settings_keep_their_meaning(monkeypatch):
    assert chosen_trackers(RecordSettings()) == ("tensorboard",)
    assert chosen_trackers(RecordSettings(tensorboard=False)) == ()
    assert chosen_trackers(RecordSettings(tensorboard=False, trackers=("tensorboard",))) == ("tensorboard",)
    assert chosen_trackers(RecordSettings(trackers=())) == ()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert chosen_trackers(RecordSettings()) == ()  # by default, a package that is missing is not asked for


def test_a_resumed_run_goes_on_under_its_id(tmp_path):
    assert trackers.stored_id(tmp_path, "wandb", lambda: "first") == "first"
    assert trackers.stored_id(tmp_path, "wandb", lambda: "second") == "first"
    assert trackers.stored_id(tmp_path, "mlflow", lambda: "other") == "other"
