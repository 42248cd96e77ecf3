import importlib.util

import numpy as np
import pytest
import torch

from dinorankclip.evaluate.examples import project
from dinorankclip.types import UserError


def rows(count=60, seed=0):
    """Variance 9, 4 and 0.01 along the first axes."""
    scale = torch.tensor([3.0, 2.0, 0.1, 0.1, 0.1])
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)) * scale


def test_the_plane_is_that_of_largest_variance():
    image, text = rows(), rows(40, seed=1) + 1
    found = project({"image": image, "text": text})
    assert found.points["image"].shape == (60, 2) and found.points["text"].shape == (40, 2)
    centred = torch.cat([image, text]).double()
    centred = (centred - centred.mean(0)).numpy()
    values = np.linalg.svd(centred, compute_uv=False) ** 2
    assert found.explained == pytest.approx(values[:2] / values.sum())
    together = np.concatenate(list(found.points.values()))
    assert (together**2).sum(0) == pytest.approx(values[:2], rel=1e-4)
    assert np.corrcoef(together[:, 0], centred[:, 0])[0, 1] > 0.9  # the axis points where its largest entry is positive


def test_signs_do_not_depend_on_the_order_of_rows():
    image, text = rows(), rows(40, seed=1)
    again = project({"text": text, "image": image})
    assert np.allclose(project({"image": image, "text": text}).points["image"], again.points["image"], atol=1e-4)


def test_what_cannot_be_drawn_is_explained():
    with pytest.raises(UserError, match="no projection 'tsne'"):
        project({"image": rows()}, "tsne")
    with pytest.raises(UserError, match="at least 3"):
        project({"image": rows(2)})
    flat = project({"image": torch.ones(5, 3)})
    assert np.abs(flat.points["image"]).max() == 0 and flat.explained == (0, 0)


@pytest.mark.skipif(importlib.util.find_spec("umap") is not None, reason="umap is installed")
def test_a_missing_extra_is_named():
    with pytest.raises(UserError, match=r"dinorankclip\[umap\]"):
        project({"image": rows()}, "umap")
