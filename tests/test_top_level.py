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


def test_importing_brings_no_torch():
    code = "import sys, dinorankclip; dir(dinorankclip); dinorankclip.UserError; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
