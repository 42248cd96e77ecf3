"""Graphs with weights in 16 and 8 bits: smaller, near the model, for any batch."""

import numpy as np
import pytest
import torch

from dinorankclip.models.export_model import write_export
from dinorankclip.models.loaded import load_model, trial_pairs
from dinorankclip.types import UserError
from tests.models.model_making import saved, small_model

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def test_smaller_graphs_stay_near_the_model(tmp_path):
    source = saved(tmp_path / "plain", small_model(seed=2))
    model = load_model(source)
    pictures, captions = trial_pairs(20)
    images = torch.stack([model.preprocess(picture) for picture in pictures])
    ids = model.tokenizer(captions, full=True)
    expected = {"image": model.encode_image(images), "text": model.encode_text(ids)}
    sizes = {}
    for precision, least in (("fp32", 0.999999), ("fp16", 0.99999), ("int8", 0.995)):
        out = tmp_path / precision
        written = write_export(str(source), out, ["onnx"], licence="mit", precision=precision)
        assert all("smallest cosine" in remark for remark in written.remarks)
        sizes[precision] = (out / "text.onnx").stat().st_size
        for part, name, inputs in (("image", "images", images), ("text", "ids", ids)):
            session = onnxruntime.InferenceSession(out / f"{part}.onnx", providers=["CPUExecutionProvider"])
            rows = session.run(None, {name: inputs.numpy()})[0]
            assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
            assert float((torch.from_numpy(rows) * expected[part]).sum(1).min()) > least
    assert sizes["fp16"] < 0.55 * sizes["fp32"] and sizes["int8"] < 0.35 * sizes["fp32"]
    assert any("→" in remark for remark in written.remarks)


def test_precision_belongs_to_graphs(tmp_path):
    source = saved(tmp_path / "plain", small_model(seed=2))
    with pytest.raises(UserError, match="is for --to onnx"):
        write_export(str(source), tmp_path / "out", ["folder"], precision="int8")
