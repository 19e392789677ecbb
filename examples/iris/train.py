"""Trains the iris classifier of this example and writes model/model.onnx.

    pip install scikit-learn==1.5.2 skl2onnx==1.20.0 onnx==1.18.0
    python examples/iris/train.py

The data set is the one that scikit-learn ships. The model scales the four measurements and
classifies them by logistic regression. It takes `input`, FP32 of any number of rows by 4, and
gives `label`, INT64, and `probabilities`, FP32 by class (setosa, versicolor, virginica).
"""

import pathlib

from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

features, classes = load_iris(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
model.fit(features, classes)
print(f"accuracy on the training data: {model.score(features, classes):.3f}")

onnx_model = to_onnx(
    model,
    initial_types=[("input", FloatTensorType([None, 4]))],
    final_types=None,
    options={id(model): {"zipmap": False}},
    target_opset={"": 17, "ai.onnx.ml": 3},
)
onnx_model.graph.name = "iris"
out = pathlib.Path(__file__).parent / "model" / "model.onnx"
out.parent.mkdir(exist_ok=True)
out.write_bytes(onnx_model.SerializeToString())
print(f"wrote {out.name}, {out.stat().st_size} bytes")
