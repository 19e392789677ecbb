"""Records what single operators compute, by two implementations that must agree.

    /tmp/v/bin/python test/golden/onnx/operators.py

Writes internal/onnx/exec/testdata/operators.json. The values are those of onnx.reference, the
standard's own evaluator in NumPy, and onnxruntime must give the same within 1e-5; for the few
operators that one of the two lacks, the other's count alone ("by" says which). The virtual
environment is that of generate.py.
"""

import json
import math
import pathlib

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ort.set_default_logger_severity(4)
OUT = pathlib.Path(__file__).parents[3] / "internal" / "onnx" / "exec" / "testdata" / "operators.json"
NAMES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "int16": "INT16", "int8": "INT8",
         "uint8": "UINT8", "bool": "BOOL"}
rng = np.random.default_rng(5)
cases = []


def number(x):
    if isinstance(x, float) and not math.isfinite(x):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(x)]
    return x


def record(value):
    if value is None:
        return None
    value = np.asarray(value)
    if value.dtype.kind in "UO":
        return {"type": "BYTES", "shape": list(value.shape), "data": [str(x) for x in value.ravel()]}
    return {"type": NAMES[str(value.dtype)], "shape": list(value.shape), "data": [number(x) for x in shortest(value)]}


def shortest(value):
    if value.dtype == np.float32:
        return [float(str(x)) for x in value.ravel()]
    return value.ravel().tolist()


def attribute(v):
    if isinstance(v, bool):
        return {"i": int(v)}
    if isinstance(v, int):
        return {"i": v}
    if isinstance(v, float):
        return {"f": number(v)}
    if isinstance(v, str):
        return {"s": v}
    if isinstance(v, np.ndarray):
        return {"t": record(v)}
    if all(isinstance(x, int) for x in v):
        return {"ints": v}
    if all(isinstance(x, str) for x in v):
        return {"strings": v}
    return {"floats": [number(float(x)) for x in v]}


def element(value):
    kind = np.asarray(value).dtype
    return TensorProto.STRING if kind.kind in "UO" else helper.np_dtype_to_tensor_dtype(kind)


def close(a, b):
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "UO":
        return (a.astype(str) == b.astype(str)).all()
    return np.allclose(a.astype(np.float64), b.astype(np.float64), atol=1e-5, rtol=1e-5, equal_nan=True)


def case(name, op, inputs, opset=17, domain="", outputs=1, by="both", **attrs):
    inputs = [None if v is None else np.asarray(v, dtype=object if np.asarray(v).dtype.kind == "U" else None) for v in inputs]
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)]
    out = [f"o{k}" for k in range(outputs)]
    protos = {k: numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    node = helper.make_node(op, names, out, domain=domain, **protos)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, element(v), list(v.shape)) for n, v in zip(names, inputs) if v is not None],
        [helper.make_empty_tensor_value_info(o) for o in out])
    versions = [helper.make_opsetid("", opset if domain == "" else 17)]
    if domain:
        versions.append(helper.make_opsetid(domain, opset))
    model = helper.make_model(graph, opset_imports=versions, ir_version=8)
    feed = {n: v for n, v in zip(names, inputs) if v is not None}
    ref = got = None
    if by != "onnxruntime":
        ref = ReferenceEvaluator(model).run(None, feed)
    if by != "reference":
        got = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    if ref is not None and got is not None:
        for a, b in zip(ref, got):
            assert close(a, b), f"{name}: {a} by the reference, {b} by onnxruntime"
    cases.append({"name": f"{op}: {name}", "op": op, "domain": domain, "opset": opset, "by": by,
                  "attrs": {k: attribute(v) for k, v in attrs.items()}, "inputs": [record(v) for v in inputs],
                  "outputs": [record(v) for v in (got if ref is None else ref)]})


def f(*shape):
    return np.round(rng.standard_normal(shape) * 2, 3).astype(np.float32)


def i64(*values):
    return np.array(values, np.int64)


def elementwise():
    a, b = f(2, 3), f(2, 3)
    for op in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"]:
        case("one shape", op, [a, b])
        case("a row repeats", op, [f(2, 2, 3), f(3)])
        case("a column repeats", op, [f(2, 3), f(2, 1)])
        one = {"by": "onnxruntime"} if op == "Mean" else {}
        case("both repeat", op, [f(2, 1, 3), f(4, 1)], **one)
        case("the left one repeats", op, [f(3), f(2, 3)], **one)
        case("a scalar", op, [f(2, 3), np.float32(1.5)])
        case("a scalar of more dimensions", op, [f(3), f(1, 1)], **one)
        case("an empty batch", op, [np.zeros((0, 3), np.float32), f(3)])
        case("doubles", op, [a.astype(np.float64), b.astype(np.float64)], by="reference" if op == "Mean" else "both")
    for op in ["Add", "Sub", "Mul", "Div"]:
        case("integers", op, [i64(7, -9, 4), i64(2, 4, -3)])
        case("short integers", op, [np.array([7, 9, 4], np.int32), np.array([2, 4, 3], np.int32)])
    case("one only", "Sum", [a])
    case("three", "Max", [a, b, f(3)])
    case("squares", "Pow", [a, np.float32(2)])
    case("roots", "Pow", [np.abs(a), np.float32(0.5)])
    case("an integer exponent", "Pow", [a, i64(3)])
    case("integers", "Pow", [i64(2, 3, -2), i64(3, 2, 3)])
    case("as Python", "Mod", [i64(7, -7, 7, -7), i64(3, 3, -3, -3)])
    case("as C", "Mod", [np.array([7.5, -7.5], np.float32), np.array([2, 2], np.float32)], fmod=1)
    case("integers as C", "Mod", [i64(7, -7, 7, -7), i64(3, 3, -3, -3)], fmod=1)
    for op in ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]:
        case("numbers", op, [np.array([1, 2, np.nan], np.float32), np.array([1, 1, np.nan], np.float32)])
        case("broadcast integers", op, [i64(1, 2, 3).reshape(3, 1), i64(2, 3)])
        case("an empty batch", op, [np.zeros((0, 2), np.float32), f(2)])
    case("booleans", "Equal", [np.array([True, False]), np.array([True, True])])
    for op in ["And", "Or", "Xor"]:
        case("broadcast", op, [np.array([[True], [False]]), np.array([True, False])])
    case("a vector", "Not", [np.array([True, False])])
    case("all three broadcast", "Where", [np.array([[True], [False]]), f(3), f(2, 1)])
    case("integers", "Where", [np.array([True, False]), i64(1, 2), i64(3, 4)])
    x = np.array([-2.5, -1, -0.5, 0, 0.5, 1.5, 2.5], np.float32)
    for op in ["Abs", "Neg", "Exp", "Floor", "Ceil", "Round", "Sign", "Erf", "Sin", "Cos", "Tan", "Atan", "Tanh", "Sigmoid",
               "Softplus", "Softsign", "Relu", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "HardSwish"]:
        case("floats", op, [x])
        case("an empty batch", op, [np.zeros((0, 4), np.float32)], by="onnxruntime" if op == "Erf" else "both")
    for op in ["Sqrt", "Reciprocal", "Log"]:
        case("positive", op, [np.array([0.25, 1, 3], np.float32)])
    for op in ["Abs", "Neg", "Sign"]:
        case("integers", op, [i64(-3, 0, 4)])
    case("numbers that overflow", "Sigmoid", [np.array([-100, 100], np.float32)])
    case("a slope", "LeakyRelu", [x], alpha=0.3)
    case("an alpha", "Elu", [x], alpha=0.5)
    case("other constants", "Selu", [x], alpha=1.2, gamma=0.9)
    case("other constants", "HardSigmoid", [x], alpha=0.4, beta=0.3)
    case("a slope by channel", "PRelu", [f(2, 3, 2), np.array([0.1, 0.2, 0.3], np.float32).reshape(3, 1)])
    case("exact", "Gelu", [x], opset=20)
    case("by tanh", "Gelu", [x], opset=20, approximate="tanh")
    case("bounds as inputs", "Clip", [x, np.float32(-1), np.float32(1)])
    case("an upper bound only", "Clip", [x, None, np.float32(1)])
    case("bounds as attributes", "Clip", [x], opset=6, min=-1.0, max=1.0)
    case("no bounds", "Clip", [x])
    case("integers", "Clip", [i64(-5, 0, 5), np.int64(-2), np.int64(2)])
    case("some", "IsNaN", [np.array([1, np.nan, np.inf], np.float32)])
    case("to integers", "Cast", [x], to=TensorProto.INT64)
    case("to booleans", "Cast", [x], to=TensorProto.BOOL)
    case("from booleans", "Cast", [np.array([True, False])], to=TensorProto.FLOAT)
    case("to doubles", "Cast", [i64(1, 2)], to=TensorProto.DOUBLE)
    case("to small integers", "Cast", [i64(1, -2)], to=TensorProto.INT8)
    case("from text", "Cast", [np.array(["1.5", "-2"])], to=TensorProto.FLOAT)
    case("integers to text", "Cast", [i64(12, -3)], to=TensorProto.STRING)
    case("any", "Identity", [a])
    case("inference", "Dropout", [a])


def shapes():
    x = f(2, 3, 4)
    case("whole", "Shape", [x])
    case("the last ones", "Shape", [x], start=-2)
    case("a range", "Shape", [x], start=1, end=-1)
    case("whole", "Size", [x])
    case("an open dimension", "Reshape", [x, i64(4, -1)])
    case("zero copies", "Reshape", [x, i64(0, 0, 2, 2)])
    case("zero is zero", "Reshape", [np.zeros((0, 3), np.float32), i64(3, 0)], allowzero=1)
    case("an empty batch", "Reshape", [np.zeros((0, 4), np.float32), i64(-1, 2, 2)])
    case("an attribute", "Reshape", [x], opset=1, by="onnxruntime", shape=[6, 4])
    case("the default axis", "Flatten", [x])
    case("axis 0", "Flatten", [x], axis=0)
    case("a negative axis", "Flatten", [x], axis=-1)
    case("all ones", "Squeeze", [f(1, 3, 1)])
    case("axes as an input", "Squeeze", [f(1, 3, 1), i64(-1)])
    case("axes as an attribute", "Squeeze", [f(1, 3, 1)], opset=11, axes=[0])
    case("axes as an input", "Unsqueeze", [f(3), i64(0, -1)])
    case("axes as an attribute", "Unsqueeze", [f(3, 2)], opset=11, axes=[1, 3])
    case("reversed", "Transpose", [x])
    case("the last stays", "Transpose", [x], perm=[1, 0, 2])
    case("the last moves", "Transpose", [x], perm=[2, 0, 1])
    case("integers", "Transpose", [np.arange(6).reshape(2, 3)], perm=[1, 0])
    case("an empty batch", "Transpose", [np.zeros((0, 3), np.float32)], perm=[1, 0])
    case("the middle axis", "Concat", [x, f(2, 1, 4)], axis=1)
    case("a negative axis", "Concat", [f(2, 1), f(2, 2)], axis=-1)
    case("text", "Concat", [np.array(["a"]), np.array(["b", "c"])], axis=0)
    case("an empty part", "Concat", [np.zeros((0, 2), np.float32), f(2, 2)], axis=0)
    case("equal parts", "Split", [f(4, 2)], outputs=2, axis=0, opset=13)
    case("sizes as an input", "Split", [f(2, 5), i64(2, 3)], outputs=2, axis=-1)
    case("sizes as an attribute", "Split", [f(2, 5)], outputs=2, axis=1, opset=11, split=[1, 4])
    case("the last is smaller", "Split", [f(7)], outputs=3, axis=0, opset=18, num_outputs=3)
    case("a range", "Slice", [x, i64(0, 1), i64(1, 3), i64(0, 2)])
    case("backwards", "Slice", [x, i64(-1), i64(-10), i64(1), i64(-1)])
    case("steps and ends beyond", "Slice", [x, i64(0), i64(1000), i64(-1), i64(3)])
    case("nothing left", "Slice", [x, i64(2), i64(1), i64(1)])
    case("attributes", "Slice", [x], opset=9, starts=[0, 1], ends=[2, -1], axes=[0, 2])
    case("rows", "Gather", [x, i64(1, 0, -1)], axis=1)
    case("a scalar index", "Gather", [x, np.int64(1)], axis=-1)
    case("integers by a matrix", "Gather", [i64(5, 6, 7), np.array([[0, 2], [1, 1]])])
    case("text", "Gather", [np.array(["a", "b"]), i64(1, 1)])
    case("an empty batch", "Gather", [x, np.zeros((0,), np.int64)], by="onnxruntime")
    case("columns", "GatherElements", [f(2, 3), np.array([[0, -1], [1, 0]])], axis=1)
    case("points", "GatherND", [f(2, 3), np.array([[0, 1], [1, -1]])])
    case("rows", "GatherND", [f(2, 3), np.array([[1], [0]])])
    case("repeats", "Expand", [f(3, 1), i64(2, 1, 4)])
    case("a smaller shape", "Expand", [f(2, 3), i64(3)])
    case("twice", "Tile", [f(2, 2), i64(2, 3)])
    case("none", "Tile", [f(2, 2), i64(0, 1)])
    case("a tensor", "Constant", [], value=f(2))
    case("an integer", "Constant", [], value_int=3)
    case("integers", "Constant", [], value_ints=[3, 4])
    case("a float", "Constant", [], value_float=1.5)
    case("floats", "Constant", [], value_floats=[0.5, 1.5])
    case("text", "Constant", [], by="onnxruntime", value_string="a")
    case("zeros", "ConstantOfShape", [i64(2, 1)])
    case("a value", "ConstantOfShape", [i64(3)], value=i64(7))
    case("a scalar", "ConstantOfShape", [np.zeros((0,), np.int64)])
    case("integers", "Range", [np.int64(1), np.int64(8), np.int64(3)])
    case("downwards", "Range", [np.float32(1), np.float32(-1), np.float32(-0.5)])
    case("the last axis", "OneHot", [i64(0, 2, -1), np.int64(3), np.array([0, 5], np.float32)])
    case("the first axis", "OneHot", [i64(0, 4), np.int64(3), np.array([1, 2], np.float32)], by="onnxruntime", axis=0)
    case("a matrix", "NonZero", [np.array([[1, 0], [0, 2]], np.float32)])
    case("along an axis", "CumSum", [f(2, 3), np.int64(1)])
    case("backwards without itself", "CumSum", [f(2, 3), np.int64(-1)], exclusive=1, reverse=1)
    for mode in ["constant", "reflect", "edge"]:
        case(mode, "Pad", [f(2, 3), i64(0, 1, 1, 2)], mode=mode)
    case("wrap", "Pad", [f(2, 3), i64(0, 1, 1, 2)], opset=19, mode="wrap")
    case("a value", "Pad", [f(2), i64(1, 0), np.float32(7)])
    case("axes", "Pad", [f(2, 3), i64(1, 0), np.float32(0), i64(-1)], opset=18)
    case("cuts", "Pad", [f(2, 3), i64(0, -1, 0, 1)], by="onnxruntime")
    case("attributes", "Pad", [f(2)], opset=2, by="onnxruntime", pads=[1, 1], value=3.0)


def reductions():
    x = f(2, 3, 4)
    for op in ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp"]:
        case("all", op, [x], keepdims=0)
        case("a negative axis", op, [x], axes=[-1])
        case("two axes", op, [x], axes=[0, 2], keepdims=0)
        case("axes as an input", op, [x, i64(1)], opset=18)
    case("axes as an input", "ReduceSum", [x, i64(-2)], keepdims=0)
    case("axes as an attribute", "ReduceSum", [x], opset=11, axes=[1])
    case("nothing to do", "ReduceSum", [x], by="reference", noop_with_empty_axes=1)
    case("integers", "ReduceSum", [np.arange(6).reshape(2, 3), i64(0)])
    case("an empty batch", "ReduceSum", [np.zeros((0, 3), np.float32), i64(0)], keepdims=0)
    case("an empty batch by row", "ReduceSum", [np.zeros((0, 3), np.float32), i64(1)])
    for op in ["ArgMax", "ArgMin"]:
        case("the default axis", op, [x])
        case("a negative axis", op, [x], axis=-1, keepdims=0)
        case("equals", op, [np.array([[1, 3, 3, 1]], np.float32)], axis=1)
        case("the last of equals", op, [np.array([[1, 3, 3, 1]], np.float32)], axis=1, select_last_index=1)
    case("largest", "TopK", [f(2, 5), i64(2)], outputs=2)
    case("smallest of the first axis", "TopK", [f(4, 2), i64(3)], outputs=2, axis=0, largest=0)
    for op in ["Softmax", "LogSoftmax"]:
        case("the last axis", op, [x])
        case("the middle axis", op, [x], axis=1)
        case("the rest together, before version 13", op, [x], opset=11, by="onnxruntime")
        case("numbers that overflow", op, [np.array([[1000, 1000, -1000]], np.float32)],
             by="onnxruntime" if op == "LogSoftmax" else "both")
        case("an empty batch", op, [np.zeros((0, 3), np.float32)])
    case("matrices", "MatMul", [f(5, 7), f(7, 19)])
    case("a stack times a matrix", "MatMul", [f(2, 3, 4), f(4, 5)])
    case("a matrix times a stack", "MatMul", [f(3, 4), f(2, 4, 5)])
    case("stacks that broadcast", "MatMul", [f(2, 1, 3, 4), f(3, 4, 2)])
    case("a vector on the left", "MatMul", [f(4), f(2, 4, 3)])
    case("a vector on the right", "MatMul", [f(2, 3, 4), f(4)])
    case("vectors", "MatMul", [f(4), f(4)])
    case("an empty batch", "MatMul", [np.zeros((0, 4), np.float32), f(4, 3)])
    case("doubles", "MatMul", [f(2, 3).astype(np.float64), f(3, 2).astype(np.float64)])
    case("plain", "Gemm", [f(2, 3), f(3, 4), f(4)])
    case("both turned, with factors", "Gemm", [f(3, 2), f(4, 3), f(2, 1)], transA=1, transB=1, alpha=0.5, beta=2.0)
    case("no third", "Gemm", [f(2, 3), f(3, 4)], alpha=2.0)
    case("a scalar third", "Gemm", [f(2, 3), f(3, 4), np.float32(1)])
    case("an empty batch", "Gemm", [np.zeros((0, 3), np.float32), f(3, 2), f(2)])
    case("the last axis", "LayerNormalization", [x, f(4), f(4)])
    case("two axes, no bias", "LayerNormalization", [x, f(3, 4)], axis=-2, epsilon=0.01)


def networks():
    x = f(1, 2, 5, 6)
    case("plain", "Conv", [x, f(3, 2, 3, 3), f(3)])
    case("padding, steps, dilation", "Conv", [x, f(3, 2, 2, 2)], pads=[1, 0, 0, 1], strides=[2, 1], dilations=[1, 2])
    case("a filter for each channel", "Conv", [x, f(4, 1, 3, 2)], group=2)
    case("one dimension", "Conv", [f(2, 1, 6), f(2, 1, 3)], strides=[2])
    case("same size above", "Conv", [x, f(1, 2, 2, 2)], auto_pad="SAME_UPPER")
    case("an empty batch", "Conv", [np.zeros((0, 2, 5, 6), np.float32), f(3, 2, 3, 3)], by="onnxruntime")
    case("plain", "MaxPool", [x], kernel_shape=[2, 2])
    case("padding and steps", "MaxPool", [x], kernel_shape=[3, 2], pads=[1, 1, 1, 0], strides=[2, 2])
    case("the last is partial", "MaxPool", [x], kernel_shape=[2, 2], strides=[2, 4], ceil_mode=1, by="onnxruntime")
    case("plain", "AveragePool", [x], kernel_shape=[2, 3])
    case("without the padding", "AveragePool", [x], kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    case("with the padding", "AveragePool", [x], kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)
    case("all", "GlobalAveragePool", [x])
    case("all", "GlobalMaxPool", [x])
    case("inference", "BatchNormalization", [f(2, 3, 2), f(3), f(3), f(3), np.abs(f(3)) + 0.5], epsilon=0.01)
    case("rows", "BatchNormalization", [f(2, 3), f(3), f(3), f(3), np.abs(f(3)) + 0.5])
    for op, gates in [("RNN", 1), ("GRU", 3), ("LSTM", 4)]:
        weights = lambda d, bias=True: [f(d, gates * 2, 3) / 4, f(d, gates * 2, 2) / 4] + ([f(d, gates * 4) / 4] if bias else [])
        case("forwards", op, [f(4, 2, 3), *weights(1)], outputs=2, hidden_size=2)
        case("no bias", op, [f(4, 2, 3), *weights(1, False)], outputs=2, hidden_size=2)
        case("both directions", op, [f(4, 2, 3), *weights(2)], outputs=2, hidden_size=2, direction="bidirectional", by="onnxruntime")
        case("backwards over lengths", op, [f(4, 2, 3), *weights(1), np.array([4, 2], np.int32)], outputs=2, hidden_size=2,
             direction="reverse", by="onnxruntime")
    case("reset after the product", "GRU", [f(4, 2, 3), f(1, 6, 3), f(1, 6, 2), f(1, 12)], outputs=2, hidden_size=2, linear_before_reset=1)


def trees(kind, **more):
    return dict(
        nodes_treeids=[0, 0, 0, 0, 0, 1, 1, 1], nodes_nodeids=[0, 1, 2, 3, 4, 0, 1, 2],
        nodes_featureids=[0, 1, 0, 0, 0, 1, 0, 0], nodes_values=[0.5, -0.5, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 3, 0, 0, 0, 1, 0, 0], nodes_falsenodeids=[2, 4, 0, 0, 0, 2, 0, 0],
        nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 0, 0, 0],
        **{f"{kind}_treeids": [0, 0, 0, 1, 1], f"{kind}_nodeids": [2, 3, 4, 1, 2], f"{kind}_weights": [0.25, 0.5, -0.5, 1.0, 2.0]},
        **more)


def learning():
    ml = dict(domain="ai.onnx.ml", opset=3)
    x = np.array([[0.5, -0.5], [0.6, 0.2], [-1, 0.3], [0, -3]], np.float32)
    holes = np.array([[np.nan, 0.1], [0.1, np.nan]], np.float32)
    case("a sum", "TreeEnsembleRegressor", [x], **ml, **trees("target", target_ids=[0] * 5, n_targets=1))
    case("holes", "TreeEnsembleRegressor", [holes], **ml, by="onnxruntime", **trees("target", target_ids=[0] * 5, n_targets=1))
    for how in ["AVERAGE", "MIN", "MAX"]:
        case(how, "TreeEnsembleRegressor", [x], **ml, by="onnxruntime",
             **trees("target", target_ids=[0] * 5, n_targets=1, aggregate_function=how))
    case("two targets and a base", "TreeEnsembleRegressor", [x], **ml, by="reference",
         **trees("target", target_ids=[0, 1, 0, 1, 0], n_targets=2, base_values=[1.0, 2.0]))
    case("three classes", "TreeEnsembleClassifier", [x], **ml, outputs=2, by="onnxruntime",
         **trees("class", class_ids=[0, 1, 2, 0, 1], classlabels_int64s=[4, 5, 6], post_transform="SOFTMAX"))
    case("text", "TreeEnsembleClassifier", [x], **ml, outputs=2, by="onnxruntime",
         **trees("class", class_ids=[0, 1, 2, 0, 1], classlabels_strings=["a", "b", "c"]))
    case("one score", "TreeEnsembleClassifier", [x], **ml, outputs=2, by="onnxruntime",
         **trees("class", class_ids=[0] * 5, classlabels_int64s=[0, 1], post_transform="LOGISTIC"))
    case("two targets", "LinearRegressor", [x], **ml, coefficients=[1.0, 2.0, -1.0, 0.5], intercepts=[0.5, 0.25], targets=2)
    case("an empty batch", "LinearRegressor", [np.zeros((0, 2), np.float32)], **ml, coefficients=[1.0, 2.0], intercepts=[0.5])
    for transform in ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]:
        case(transform, "LinearClassifier", [x], **ml, outputs=2, by="onnxruntime", coefficients=[1.0, 2.0, -1.0, 0.5, 0.3, 0.1],
             intercepts=[0.5, 0.25, 0.0], classlabels_ints=[3, 4, 5], post_transform=transform)
    case("integers", "LinearClassifier", [np.array([[1, 2]], np.int64)], **ml, outputs=2, by="onnxruntime",
         coefficients=[1.0, 2.0, -1.0, 0.5], intercepts=[0.5, 0.25], classlabels_strings=["n", "y"])
    case("kernel", "SVMRegressor", [x], **ml, kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0], n_supports=2, by="onnxruntime",
         support_vectors=[0.1, 0.2, 0.3, -0.4], coefficients=[1.0, -0.5], rho=[0.25])
    for kernel in ["LINEAR", "POLY", "SIGMOID"]:
        case(kernel, "SVMRegressor", [x], **ml, kernel_type=kernel, kernel_params=[0.5, 0.1, 2.0], n_supports=2, by="onnxruntime",
             support_vectors=[0.1, 0.2, 0.3, -0.4], coefficients=[1.0, -0.5], rho=[0.25])
    case("two classes", "SVMClassifier", [x], **ml, outputs=2, by="onnxruntime", kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0],
         vectors_per_class=[1, 1], support_vectors=[0.1, 0.2, 0.3, -0.4], coefficients=[1.0, -0.5], rho=[0.25], classlabels_ints=[0, 1])
    case("columns", "Scaler", [x], **ml, offset=[0.5, 1.0], scale=[2.0, 3.0])
    case("one for all", "Scaler", [np.array([[1, 2]], np.int64)], **ml, by="onnxruntime", offset=[0.5], scale=[2.0])
    for norm in ["L1", "L2", "MAX"]:
        case(norm, "Normalizer", [np.abs(x)], **ml, norm=norm)
    case("holes", "Imputer", [holes], **ml, imputed_value_floats=[1.0, 2.0], replaced_value_float=float("nan"))
    case("one value", "Imputer", [np.array([[0, 3]], np.int64)], **ml, imputed_value_int64s=[9], replaced_value_int64=0)
    case("a threshold", "Binarizer", [x], **ml, threshold=0.1)
    case("integers", "OneHotEncoder", [i64(1, 3, 2)], **ml, cats_int64s=[1, 2], zeros=1)
    case("text", "OneHotEncoder", [np.array([["a"], ["c"]])], **ml, by="onnxruntime", cats_strings=["a", "b"], zeros=1)
    case("text to integers", "LabelEncoder", [np.array(["a", "z"])], **ml, keys_strings=["a", "b"], values_int64s=[7, 8], default_int64=-3)
    case("integers to text", "LabelEncoder", [i64(1, 9)], **ml, keys_int64s=[1, 2], values_strings=["x", "y"], default_string="?")
    case("floats to floats", "LabelEncoder", [np.array([1.5, np.nan, 4], np.float32)], domain="ai.onnx.ml", opset=4, by="onnxruntime",
         keys_floats=[1.5, float("nan")], values_floats=[0.5, 0.25], default_float=-1.0)
    case("text to integers", "CategoryMapper", [np.array(["a", "z"])], domain="ai.onnx.ml", opset=1, by="onnxruntime",
         cats_strings=["a", "b"], cats_int64s=[5, 6], default_int64=-7)
    case("integers to text", "CategoryMapper", [i64(5, 9)], domain="ai.onnx.ml", opset=1, by="onnxruntime",
         cats_strings=["a", "b"], cats_int64s=[5, 6], default_string="?")
    case("columns joined", "FeatureVectorizer", [f(2, 2), f(2, 1)], domain="ai.onnx.ml", opset=1, by="onnxruntime", inputdimensions=[2, 1])
    case("columns", "ArrayFeatureExtractor", [x, i64(1, 0)], domain="ai.onnx.ml", opset=1)
    case("text", "ArrayFeatureExtractor", [np.array([["a", "b"]]), i64(1)], domain="ai.onnx.ml", opset=1, by="onnxruntime")


def words():
    case("lower case without some", "StringNormalizer", [np.array(["The", "Cat", "SAT"])], by="reference",
         case_change_action="LOWER", is_case_sensitive=0, stopwords=["the"])
    case("nothing left", "StringNormalizer", [np.array(["a"])], by="reference", stopwords=["a"], is_case_sensitive=1)
    case("words", "Tokenizer", [np.array(["ab, cd", "e"])], domain="com.microsoft", opset=1, by="onnxruntime",
         mark=0, mincharnum=1, pad_value="#", separators=[",", " "])
    for mode in ["TF", "IDF", "TFIDF"]:
        case(mode, "TfIdfVectorizer", [np.array([[2, 3, 3, 5], [5, 2, 3, 9]])], mode=mode, min_gram_length=1, max_gram_length=2,
             max_skip_count=0, ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3, 4], pool_int64s=[2, 3, 5, 2, 3, 3, 5],
             weights=[0.5, 2.0, 1.0, 3.0, 0.25])
    case("text", "TfIdfVectorizer", [np.array(["a", "b", "a"])], mode="TF", min_gram_length=1, max_gram_length=1,
         max_skip_count=0, ngram_counts=[0], ngram_indexes=[1, 0], pool_strings=["a", "b"])


if __name__ == "__main__":
    for group in [elementwise, shapes, reductions, networks, learning, words]:
        group()
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(c, allow_nan=False, separators=(",", ":")) for c in cases) + "\n]\n")
    print(len(cases), "cases,", OUT.stat().st_size, "bytes")
