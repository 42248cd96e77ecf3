"""Makes ONNX graphs smaller, in place: weights in 16 bits (`halved`), or in 8 bits (`quantised`).

    halved      weights in fp16, computed in fp32: half the bytes, the same program everywhere, browsers included
    quantised   MatMul and Gemm by onnxruntime: weights int8 per channel, inputs uint8 by their range at run time.
                Convolutions and token tables: weights int8 with one scale a channel or row, computed in fp32, because
                inputs of convolutions have ranges that 8 bits do not hold

A weight w of a channel becomes round(w/s), s = max|w|/127.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

_LEAST = 4096  # numbers of a weight below which 8 bits save nothing
_BESIDE = 1_500_000_000  # bytes; larger graphs keep their weights in a file beside them


def halved(path: Path) -> None:
    """Store the weights of a graph in fp16; a node behind each turns them into fp32, once, when a session opens."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = onnx.load(path)
    for name, weight in _weights(graph.graph).items():
        values = numpy_helper.to_array(weight)
        if values.size < _LEAST or np.abs(values).max() > np.finfo(np.float16).max:
            continue
        graph.graph.initializer.remove(weight)
        graph.graph.initializer.append(numpy_helper.from_array(values.astype(np.float16), f"{name}_fp16"))
        graph.graph.node.insert(0, helper.make_node("Cast", [f"{name}_fp16"], [name], to=TensorProto.FLOAT))
    _save(graph, path)


def quantised(path: Path) -> None:
    """Store the weights of a graph in int8."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path)
    _shrink_tables(graph.graph)
    _shrink_convolutions(graph.graph)
    _drop_shapes(graph.graph)
    _save(graph, path)
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)  # advice about a preparation that these graphs do not need
    try:
        large = path.stat().st_size > _BESIDE
        quantize_dynamic(
            path, path, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8,
            use_external_data_format=large, extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
    finally:
        logger.setLevel(before)


def _save(graph: Any, path: Path) -> None:
    import onnx

    large = graph.ByteSize() > _BESIDE
    onnx.save(graph, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)


def _drop_shapes(graph: Any) -> None:
    """Forget the shapes that the exporter noted: onnxruntime infers them again, with the new operations."""
    del graph.value_info[:]


def _weights(graph: Any) -> dict[str, Any]:
    from onnx import TensorProto

    return {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}


def _in_8_bits(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 values and the scale of each channel, the first axis."""
    flat = np.abs(weight.reshape(len(weight), -1)).max(1)
    scale = np.maximum(flat / 127, 1e-12).astype(np.float32)
    values = np.rint(weight / scale.reshape(-1, *([1] * (weight.ndim - 1))))
    return values.clip(-127, 127).astype(np.int8), scale


def _replace(graph: Any, weight: Any, values: np.ndarray, scale: np.ndarray) -> tuple[str, str]:
    """Put int8 values and scales in the place of a weight; return their names."""
    from onnx import numpy_helper

    names = f"{weight.name}_int8", f"{weight.name}_scale"
    graph.initializer.remove(weight)
    graph.initializer.extend(numpy_helper.from_array(array, name) for array, name in zip((values, scale), names))
    return names


def _shrink_convolutions(graph: Any) -> None:
    """Store the weights of convolutions in int8; a node in front of each turns them into fp32."""
    from onnx import helper, numpy_helper

    weights = _weights(graph)
    for place, node in reversed(list(enumerate(graph.node))):
        weight = weights.get(node.input[1]) if node.op_type == "Conv" else None
        if weight is None or np.prod(weight.dims) < _LEAST:
            continue
        if sum(weight.name in other.input for other in graph.node) > 1:
            continue
        values, scale = _replace(graph, weight, *_in_8_bits(numpy_helper.to_array(weight)))
        node.input[1] = f"{weight.name}_fp32"
        graph.node.insert(
            place, helper.make_node("DequantizeLinear", [values, scale], [node.input[1]], axis=0, name=node.input[1])
        )


def _shrink_tables(graph: Any) -> None:
    """Store token tables in int8, one scale a row; rows are turned into fp32 after they are looked up."""
    from onnx import TensorProto, helper, numpy_helper

    weights = _weights(graph)
    for place, node in reversed(list(enumerate(graph.node))):
        table = weights.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or len(table.dims) != 2 or np.prod(table.dims) < _LEAST:
            continue
        if any(each.name == "axis" and each.i != 0 for each in node.attribute):
            continue
        if sum(table.name in other.input for other in graph.node) > 1:
            continue
        array, scale = _in_8_bits(numpy_helper.to_array(table))
        names = _replace(graph, table, array, scale[:, None])
        rows, row_scale, cast = (f"{node.output[0]}_{part}" for part in ("int8", "scale", "cast"))
        graph.node.remove(node)
        graph.node.insert(place, helper.make_node("Mul", [cast, row_scale], [node.output[0]]))
        graph.node.insert(place, helper.make_node("Gather", [names[1], node.input[1]], [row_scale], axis=0))
        graph.node.insert(place, helper.make_node("Cast", [rows], [cast], to=TensorProto.FLOAT))
        graph.node.insert(place, helper.make_node("Gather", [names[0], node.input[1]], [rows], axis=0))
