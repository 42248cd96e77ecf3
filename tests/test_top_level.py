"""What `import dinorankclip` offers, without the cost of it."""

import subprocess
import sys

import pytest

import dinorankclip


def test_all_names_are_listed_and_lead_somewhere():
    assert {"load_model", "RankingLoss", "UserError", "__version__"} <= set(dir(dinorankclip))
    from dinorankclip.losses import ranking
    from dinorankclip.losses.ranking import RankingLoss
    from dinorankclip.models import loaded
    from dinorankclip.models.loaded import load_model
    from dinorankclip.types import UserError
    from dinorankclip.types import UserError as same

    assert (load_model, RankingLoss, UserError) == (loaded.load_model, ranking.RankingLoss, same)
    assert all(hasattr(dinorankclip, name) for name in dinorankclip.__all__)
    with pytest.raises(AttributeError, match="no attribute 'load_modell'"):
        dinorankclip.load_modell  # noqa: B018


@pytest.mark.parametrize("name", ["train", "search"])
def test_a_room_is_also_the_function_of_its_name(name):
    """Whether a file of the room was imported before or not, and by either way of importing."""
    code = (
        f"import dinorankclip, inspect; first = dinorankclip.{name}; from dinorankclip import {name}; "
        f"import dinorankclip.api.training, dinorankclip.search.index, dinorankclip.train.loop; "
        f"assert first is {name} is dinorankclip.{name} and callable({name}); "
        f"print(*inspect.signature({name}).parameters)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert shown.split()[:2] == {"train": ["settings", "data"], "search": ["model", "images"]}[name]


def test_importing_brings_no_torch():
    used = "dinorankclip.UserError; dinorankclip.TrainSettings; dinorankclip.register_method; dinorankclip.train"
    code = f"import sys, dinorankclip; dir(dinorankclip); {used}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
