"""Nothing that a foreign model folder names is asked, run or fetched."""

import builtins
import copy
import json
import shutil
import socket

import open_clip
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dinorankclip.models.folder import CONFIG, WEIGHTS
from dinorankclip.models.loaded import load_model
from dinorankclip.models.open_clip_weights import refuse_foreign_captions
from dinorankclip.models.trunk import Trunk, trunk_config
from dinorankclip.models.trunk_gate import check_size, check_trunk, least_numbers
from dinorankclip.train.assemble import build_model
from dinorankclip.types import UserError
from tests.models.model_making import saved, small_config, small_model
from tests.models.test_open_clip_weights import parse

CODE = """
from pathlib import Path
Path({canary!r}).write_text("this code ran")
from transformers import PretrainedConfig, PreTrainedModel
class Config(PretrainedConfig):
    model_type = "foreign"
class Model(PreTrainedModel):
    config_class = Config
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Block the network and the keyboard; yield what was tried."""
    tried = []

    def block(*arguments, **_):
        tried.append(arguments)
        raise OSError("blocked by the test")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, block)
    monkeypatch.setattr(socket, "create_connection", block)
    monkeypatch.setattr(socket, "getaddrinfo", block)
    monkeypatch.setattr(builtins, "input", block)
    yield tried
    assert tried == []


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("original") / "model", small_model())


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


@pytest.fixture
def foreign(tmp_path):
    """A folder of transformers with code of its own, as a hub repository would have."""
    place = tmp_path / "foreign"
    place.mkdir()
    names = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    (place / "config.json").write_text(json.dumps({"model_type": "foreign", "auto_map": names}))
    (place / "code.py").write_text(CODE.format(canary=str(tmp_path / "canary")))
    return place


def hostile_trunks(foreign):
    """Configurations that lead open_clip to code, to the hub or to a question."""
    usual = small_config()
    for name in (str(foreign), "some/repository"):
        yield usual | {"text_cfg": usual["text_cfg"] | {"hf_model_name": name, "hf_model_pretrained": True}}
        yield usual | {"text_cfg": usual["text_cfg"] | {"hf_tokenizer_name": name}}
    for name in ("hf-hub:some/model", "hf_hub:some/model", "local-dir:/tmp", "../../etc", "resnet18:x", "no_such_net"):
        yield usual | {"vision_cfg": {"timm_model_name": name, "image_size": 32}}
    yield usual | {"vision_cfg": usual["vision_cfg"] | {"act_kwargs": {"approximate": {"a": 1}}}}
    yield usual | {"cast_dtype": "float16"}
    yield usual | {"vision_cfg": usual["vision_cfg"] | {"width": 10**6}}
    yield usual | {"embed_dim": float("nan")}


def test_every_way_in_refuses_hostile_trunks(folder, foreign, tmp_path, capsys):
    shutil.copy(folder / WEIGHTS, folder / "open_clip_model.safetensors")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copytree(folder, run / "checkpoints" / "last")
    arguments = ["--preset", "finetune", "--data", "photos.csv", "--init"]
    for trunk in hostile_trunks(foreign):
        for place in (folder, run / "checkpoints" / "last"):
            (place / CONFIG).write_text(json.dumps({"format": 1, "trunk": trunk}))
        (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": trunk}))
        for where in (folder, run, f"open_clip:{folder}"):
            with pytest.raises(UserError):
                load_model(where, device="cpu")
            begun, *_ = parse([*arguments, str(where)])
            with pytest.raises(UserError):
                build_model(begun)
        with pytest.raises(UserError):
            Trunk(trunk)
    assert not (tmp_path / "canary").exists() and capsys.readouterr().out == ""


def test_pretrained_towers_are_never_fetched():
    config = small_config() | {"vision_cfg": {"timm_model_name": "resnet18", "timm_model_pretrained": True}}
    assert Trunk(config | {"embed_dim": 32}).config["vision_cfg"]["timm_model_pretrained"]  # and yet nothing was tried


def test_a_model_folder_does_not_name_towers_of_the_hub(folder, monkeypatch):
    tower = {"spec": "hf:some/repository", "weights_hash": "0", "size": 224}
    text = {"spec": "random-text:0", "weights_hash": "0"}
    (folder / CONFIG).write_text(json.dumps({"format": 2, "aligned": {"image": tower, "text": text}}))
    for asked in ("", "1"):
        monkeypatch.setenv("DINORANKCLIP_ONLINE", asked)
        with pytest.raises(UserError, match="names a tower on the hub"):
            load_model(folder)


def test_all_models_of_open_clip_that_can_be_used_pass():
    passed = 0
    for name in open_clip.list_models():
        config = trunk_config(name)
        try:
            refuse_foreign_captions(config, name)
        except UserError:
            continue
        check_trunk(config)
        passed += 1
    assert passed > 80


def test_sizes_are_bounded_by_the_weights(folder):
    config = small_config()
    towers = small_model().trunk.towers
    counted = sum(parameter.numel() for parameter in towers.parameters())
    assert 0.9 * counted < least_numbers(config) <= counted
    check_size(config, folder / WEIGHTS, "it")
    config["text_cfg"] |= {"layers": 500, "width": 4096}
    (folder / CONFIG).write_text(json.dumps({"format": 1, "trunk": config}))
    with pytest.raises(UserError, match=r"describes a model of at least 100,8.* numbers"):
        load_model(folder)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just("hf-hub:a/b"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["hf_model_name", "hf_tokenizer_name", "timm_model_name", "layers", "width", "act_kwargs", "norm_kwargs", "new"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([(), ("vision_cfg",), ("text_cfg",)]), NAMES, ODD)
def test_the_schema_refuses_or_builds(place, name, value):
    """Whatever stands in a configuration: a refusal in words, or a trunk; nothing is asked or fetched."""
    config = copy.deepcopy(small_config())
    part = config
    for step in place:
        part = part[step]
    part[name] = value
    try:
        check_trunk(config)
    except UserError as refusal:
        assert len(str(refusal)) > 20
        return
    assert json.dumps(config["text_cfg"]).find("hf_") < 0
