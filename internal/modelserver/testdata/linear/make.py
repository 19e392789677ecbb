"""Makes model.onnx: y = x @ W + b, with W = 0..11 as [4, 3] and b = [0.5, 1, -1]. Needs onnx and numpy."""
import numpy as np
import onnx
from onnx import TensorProto, helper

W = helper.make_tensor("W", TensorProto.FLOAT, [4, 3], np.arange(12, dtype=np.float32).tolist())
b = helper.make_tensor("b", TensorProto.FLOAT, [3], [0.5, 1, -1])
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
graph = helper.make_graph([helper.make_node("Gemm", ["x", "W", "b"], ["y"])], "linear", [x], [y], [W, b])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
