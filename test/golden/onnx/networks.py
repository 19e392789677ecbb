"""Builds small convolutional and recurrent networks and records what onnxruntime computes.

    /tmp/v/bin/python test/golden/onnx/networks.py

The virtual environment and the files written are those of generate.py.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from generate import save

rng = np.random.default_rng(11)


def weights(name, *shape):
    return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)


def positive(name, *shape):
    return numpy_helper.from_array(rng.uniform(0.5, 2, shape).astype(np.float32), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def network(name, nodes, inputs, outputs, constants, asked, opset=17):
    info = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info(k, info[asked[k].dtype], shape) for k, shape in inputs.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, shape) for k, shape in outputs.items()],
        constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    save(name, model, asked)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


node = helper.make_node


def convolutional():
    network("cnn", [
        node("Conv", ["x", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2", "b2"], ["c2"], kernel_shape=[3, 3]),
        node("Relu", ["c2"], ["r2"]),
        node("MaxPool", ["r2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p2"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ], {"x": ["n", 1, 12, 12]}, {"y": ["n", 5]}, [
        weights("w1", 4, 1, 3, 3), weights("b1", 4), weights("w2", 6, 4, 3, 3), weights("b2", 6),
        weights("w3", 5, 24), weights("b3", 5),
    ], {"x": floats(3, 1, 12, 12)})
    # As PyTorch and Keras write the blocks of MobileNet and ResNet.
    network("cnn_blocks", [
        node("Pad", ["x", "pads"], ["x1"], mode="reflect"),
        node("Conv", ["x1", "w1"], ["c1"], strides=[2, 1], auto_pad="SAME_UPPER"),
        node("BatchNormalization", ["c1", "s", "b", "m", "v"], ["n1"], momentum=0.9),
        node("HardSwish", ["n1"], ["h1"]),
        node("MaxPool", ["h1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], dilations=[1, 1], pads=[1, 1, 1, 1], ceil_mode=1),
        node("Conv", ["p1", "w2", "b2"], ["d2"], group=4, kernel_shape=[3, 3], dilations=[1, 2], pads=[1, 0, 1, 2]),
        node("PRelu", ["d2", "slope"], ["r2"]),
        node("AveragePool", ["r2"], ["a2"], kernel_shape=[2, 2], pads=[1, 0, 0, 1], count_include_pad=1),
        node("AveragePool", ["a2"], ["a3"], kernel_shape=[3, 2], pads=[1, 1, 1, 0], strides=[2, 1]),
        node("Conv", ["a3", "w3"], ["c3"], kernel_shape=[1, 1]),
        node("GlobalAveragePool", ["c3"], ["g"]),
        node("GlobalMaxPool", ["c3"], ["gm"]),
        node("Concat", ["g", "gm"], ["gg"], axis=1),
        node("Flatten", ["gg"], ["y"]),
    ], {"x": ["n", 3, 11, 13]}, {"y": ["n", 10]}, [
        ints("pads", 0, 0, 2, 1, 0, 0, 1, 2),
        weights("w1", 4, 3, 3, 3), positive("s", 4), weights("b", 4), weights("m", 4), positive("v", 4),
        weights("w2", 8, 1, 3, 3), weights("b2", 8), positive("slope", 8, 1, 1), weights("w3", 5, 8, 1, 1),
    ], {"x": floats(2, 3, 11, 13)})
    network("cnn_1d", [
        node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2], auto_pad="SAME_LOWER"),
        node("Selu", ["c1"], ["r1"]),
        node("AveragePool", ["r1"], ["a1"], kernel_shape=[3], strides=[2], ceil_mode=1),
        node("MaxPool", ["a1"], ["y"], kernel_shape=[2], dilations=[2]),
    ], {"x": ["n", 2, 31]}, {"y": ["n", 3, None]}, [weights("w1", 3, 2, 4), weights("b1", 3)], {"x": floats(2, 2, 31)})
    network("cnn_3d", [
        node("Conv", ["x", "w1"], ["c1"], kernel_shape=[2, 3, 2], pads=[1, 0, 1, 0, 1, 0], group=2),
        node("MaxPool", ["c1"], ["y"], kernel_shape=[2, 2, 2], strides=[1, 2, 1]),
    ], {"x": ["n", 2, 4, 5, 6]}, {"y": ["n", 4, None, None, None]}, [weights("w1", 4, 1, 2, 3, 2)], {"x": floats(2, 2, 4, 5, 6)})


def recurrent():
    for name, op, gates, direction, more in [
        ("lstm", "LSTM", 4, "forward", {}),
        ("lstm_both", "LSTM", 4, "bidirectional", {}),
        ("gru", "GRU", 3, "reverse", {}),
        ("gru_both", "GRU", 3, "bidirectional", {"linear_before_reset": 1, "clip": 0.5}),
        ("rnn_both", "RNN", 1, "bidirectional", {"activations": ["Tanh", "Relu"]}),
    ]:
        d = 2 if direction == "bidirectional" else 1
        network(name, [
            node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            node(op, ["t", "w", "r", "b"], ["s", "h"], hidden_size=8, direction=direction, **more),
            node("ReduceMean", ["s"], ["sm"], axes=[0, 1], keepdims=0),
            node("Gemm", ["sm", "w3", "b3"], ["y"], transB=1),
        ], {"x": ["n", "steps", 3]}, {"y": ["n", 2], "h": [d, "n", 8]}, [
            weights("w", d, gates * 8, 3), weights("r", d, gates * 8, 8), weights("b", d, gates * 16),
            weights("w3", 2, 8), weights("b3", 2),
        ], {"x": floats(3, 6, 3)})
    lengths = np.array([5, 2, 4], np.int32)
    network("lstm_lengths", [
        node("LSTM", ["x", "w", "r", "", "lengths", "h0", "c0", "p"], ["y", "h", "c"], hidden_size=4, direction="bidirectional"),
    ], {"x": ["steps", "n", 3], "lengths": ["n"], "h0": [2, "n", 4], "c0": [2, "n", 4]},
        {"y": ["steps", 2, "n", 4], "h": [2, "n", 4], "c": [2, "n", 4]},
        [weights("w", 2, 16, 3), weights("r", 2, 16, 4), weights("p", 2, 12)],
        {"x": floats(5, 3, 3), "lengths": lengths, "h0": floats(2, 3, 4), "c0": floats(2, 3, 4)})
    network("gru_lengths", [
        node("GRU", ["x", "w", "r", "b", "lengths", "h0"], ["y", "h"], hidden_size=4, direction="bidirectional"),
    ], {"x": ["steps", "n", 3], "lengths": ["n"], "h0": [2, "n", 4]}, {"y": ["steps", 2, "n", 4], "h": [2, "n", 4]},
        [weights("w", 2, 12, 3), weights("r", 2, 12, 4), weights("b", 2, 24)],
        {"x": floats(5, 3, 3), "lengths": lengths, "h0": floats(2, 3, 4)})


if __name__ == "__main__":
    convolutional()
    recurrent()
