import os
import subprocess
import sys

from dinorankclip.hub import ONLINE, online, stay_offline
from tests.command_line import ROOT

PRINT = "import os, huggingface_hub; print(huggingface_hub.constants.HF_HUB_OFFLINE)"


def test_hub_libraries_are_offline_unless_asked(monkeypatch):
    monkeypatch.delenv(ONLINE, raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")
    assert not online()
    stay_offline()
    assert os.environ["HF_HUB_OFFLINE"] == "1" and os.environ["TRANSFORMERS_OFFLINE"] == "0"  # the user's stays
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv(ONLINE, "1")
    assert online()
    stay_offline()
    assert "HF_HUB_OFFLINE" not in os.environ


def test_importing_the_models_keeps_the_libraries_offline():
    kept = {name: value for name, value in os.environ.items() if "OFFLINE" not in name and name != ONLINE}
    for asked, expected in (({}, "True"), ({ONLINE: "1"}, "False")):
        command = [sys.executable, "-c", f"import dinorankclip.models.trunk\n{PRINT}"]
        answer = subprocess.run(command, cwd=ROOT, env=kept | asked, capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == expected


def test_the_flag_stands_before_the_verb(monkeypatch, capsys):
    from dinorankclip.commands.entry import main

    monkeypatch.setenv(ONLINE, "")
    main(["--online", "--version"])
    assert online() and capsys.readouterr().out.startswith("dinorankclip ")
