"""What is sent to a hub: an export with a valid card, and nothing of this machine."""

import huggingface_hub
import pytest

from dinorankclip.commands.entry import main
from dinorankclip.hub import ONLINE
from dinorankclip.json_shape import fault
from dinorankclip.models.push_model import METADATA, check_card, metadata_of, refuse_traces
from dinorankclip.types import UserError
from tests.models.model_making import saved, small_model


class Recorder:
    """Stands in the place of the hub's client."""

    calls: list = []  # noqa: RUF012

    def create_repo(self, name, **options):
        self.calls.append(("create", name, options))
        return f"hub/{name}"

    def upload_folder(self, repo_id, folder_path, **options):
        files = {
            str(path.relative_to(folder_path)): path.read_bytes() for path in folder_path.rglob("*") if path.is_file()
        }
        self.calls.append(("upload", repo_id, files))


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv(ONLINE, "")
    monkeypatch.setattr(Recorder, "calls", [])
    monkeypatch.setattr(huggingface_hub, "HfApi", Recorder)
    return Recorder


def test_an_export_is_sent_after_the_user_asked(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = saved(tmp_path / "plain", small_model(seed=2))
    with pytest.raises(SystemExit):
        main(["push", str(source), "owner/first"])
    assert "--online" in capsys.readouterr().err and hub.calls == []
    main(["push", str(source), "owner/first", "--online", "--licence", "apache-2.0"])
    (_, name, options), (_, repository, files) = hub.calls
    assert name == repository == "owner/first" and options["private"] is True
    assert {"README.md", "model.json", "model.safetensors", "provenance.json"} <= files.keys()
    assert not any(str(tmp_path).encode() in data for data in files.values())
    card = files["README.md"].decode()
    assert fault(metadata_of(card), METADATA) == "" and metadata_of(card)["license"] == "apache-2.0"
    assert 'load_model("first")' in card and "uploaded to hub/owner/first" in capsys.readouterr().out


def test_refusals(hub, tmp_path, capsys):
    source = saved(tmp_path / "plain", small_model(seed=2))
    for words, message in (
        (["owner/x", "--no-private"], "needs terms"),
        (["first"], "expected OWNER/NAME"),
        (["owner/../x"], "expected OWNER/NAME"),
    ):
        with pytest.raises(SystemExit):
            main(["push", str(source), *words, "--online"])
        assert message in capsys.readouterr().err
    assert hub.calls == []


def test_a_card_with_a_flaw_is_not_sent(tmp_path):
    card = tmp_path / "README.md"
    good = "---\nlibrary_name: x\npipeline_tag: zero-shot-image-classification\nlicense: mit\ntags:\n- clip\n---\n# x\n"
    card.write_text(good)
    check_card(card)
    for old, new in (("mit", "my own"), ("tags:\n- clip", "tags: clip"), ("zero-shot-image-classification", "magic")):
        card.write_text(good.replace(old, new))
        with pytest.raises(UserError, match="refused by the hub"):
            check_card(card)
    card.write_text("# no metadata")
    with pytest.raises(UserError, match="no metadata"):
        check_card(card)


def test_paths_and_tokens_are_not_sent(tmp_path, monkeypatch):
    (tmp_path / "notes.json").write_text('{"data": "photos.csv"}')
    refuse_traces(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (tmp_path / "notes.json").write_text('{"token": "hf_secret"}')
    with pytest.raises(UserError, match="nothing was sent"):
        refuse_traces(tmp_path)
    (tmp_path / "notes.json").unlink()
    (tmp_path / "link").symlink_to("/etc/hosts")
    with pytest.raises(UserError, match="link"):
        refuse_traces(tmp_path)


@pytest.mark.parametrize(
    ("licence", "expected"), [("", "unknown"), ("CC BY 4.0", "cc-by-4.0"), ("ours alone", "other")]
)
def test_every_licence_makes_a_valid_card(licence, expected):
    from dinorankclip.models.card import CardHead, _head

    values = metadata_of(_head(CardHead("transformers", ("custom_code",)), licence) + "\n")
    assert fault(values, METADATA) == "" and values["license"] == expected
