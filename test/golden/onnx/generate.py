"""Trains small models, exports them to ONNX and records what onnxruntime computes.

    python -m venv /tmp/v && /tmp/v/bin/pip install -r test/golden/onnx/requirements.txt
    /tmp/v/bin/python test/golden/onnx/generate.py

Writes internal/onnx/testdata/<name>.onnx and <name>.json: inputs, and outputs by onnxruntime,
each as {"type", "shape", "data"}, type by its name in the Open Inference Protocol. onnxruntime's
StringNormalizer needs the locale en_US.UTF-8.
"""

import json
import math
import pathlib

import numpy as np
import onnx.helper
import onnxruntime as ort
from lightgbm import LGBMClassifier, LGBMRegressor
from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
from skl2onnx import to_onnx, update_registered_converter
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from skl2onnx.common.shape_calculator import (
    calculate_linear_classifier_output_shapes,
    calculate_linear_regressor_output_shapes,
)
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from xgboost import XGBClassifier, XGBRegressor

OUT = pathlib.Path(__file__).parents[3] / "internal" / "onnx" / "testdata"
OPSET = {"": 17, "ai.onnx.ml": 3}
TYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(int64)": "INT64",
    "tensor(int32)": "INT32",
    "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
}

make_attribute = onnx.helper.make_attribute


def attribute_without_bools(key, value, *args, **kwargs):
    """skl2onnx writes a list of booleans where onnx wants integers."""
    if isinstance(value, (list, tuple, np.ndarray)):
        value = [int(v) if isinstance(v, (bool, np.bool_)) else v for v in value]
    return make_attribute(key, value, *args, **kwargs)


onnx.helper.make_attribute = attribute_without_bools

for cls, calc, conv in [
    (XGBClassifier, calculate_linear_classifier_output_shapes, convert_xgboost),
    (XGBRegressor, calculate_linear_regressor_output_shapes, convert_xgboost),
    (LGBMClassifier, calculate_linear_classifier_output_shapes, convert_lightgbm),
    (LGBMRegressor, calculate_linear_regressor_output_shapes, convert_lightgbm),
]:
    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]} if "Classifier" in cls.__name__ else None
    update_registered_converter(cls, cls.__name__, calc, conv, options=options)


def number(x):
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)  # "nan", "inf", "-inf"
    return x


def record(value, typ):
    if isinstance(value, list):  # a sequence of maps, by ZipMap
        value, typ = np.array([list(m.values()) for m in value], dtype=np.float32), "tensor(float)"
    value = np.asarray(value)
    data = [str(x) for x in value.ravel()] if typ == "tensor(string)" else [number(x) for x in value.ravel().tolist()]
    return {"type": TYPES[typ], "shape": list(value.shape), "data": data}


def save(name, model, inputs):
    raw = model.SerializeToString()
    session = ort.InferenceSession(raw, providers=["CPUExecutionProvider"])
    outputs = session.get_outputs()
    got = session.run(None, inputs)
    types = {i.name: i.type for i in session.get_inputs()}
    case = {
        "inputs": {k: record(v, types[k]) for k, v in inputs.items()},
        "outputs": {o.name: record(v, o.type) for o, v in zip(outputs, got)},
    }
    (OUT / f"{name}.onnx").write_bytes(raw)
    (OUT / f"{name}.json").write_text(json.dumps(case, separators=(",", ":")) + "\n")
    print(f"{name}: {len(raw)} bytes")


def vectors(name, model, x, y, rows, zipmap=None):
    model.fit(x, y)
    options = None if zipmap is None else {id(model): {"zipmap": zipmap}}
    converted = to_onnx(
        model, initial_types=[("X", FloatTensorType([None, x.shape[1]]))], options=options, target_opset=OPSET
    )
    save(name, converted, {"X": rows.astype(np.float32)})


def main():
    OUT.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    xi, yi = load_iris(return_X_y=True)
    xi = xi.astype(np.float32)
    rows_i = np.concatenate([xi[::15], rng.uniform(0, 8, (20, 4))]).astype(np.float32)
    yb = (yi == 1).astype(int)
    ys = np.array(["setosa", "versicolor", "virginica"])[yi]
    xd, yd = load_diabetes(return_X_y=True)
    xd = xd.astype(np.float32)
    rows_d = np.concatenate([xd[::30], rng.uniform(-0.15, 0.15, (20, 10))]).astype(np.float32)

    for name, model in {
        "linear_regression": LinearRegression(),
        "ridge_scaled": make_pipeline(MinMaxScaler(), Ridge()),
        "normalizer_linear": make_pipeline(Normalizer("l2"), LinearRegression()),
        "decision_tree_regressor": DecisionTreeRegressor(max_depth=5, random_state=0),
        "random_forest_regressor": RandomForestRegressor(20, max_depth=4, random_state=0),
        "gradient_boosting_regressor": GradientBoostingRegressor(n_estimators=20, random_state=0),
        "hist_gradient_boosting_regressor": HistGradientBoostingRegressor(max_iter=15, max_depth=3, random_state=0),
        "svr": SVR(C=50),
        "mlp_regressor": make_pipeline(StandardScaler(), MLPRegressor((12,), max_iter=300, random_state=0)),
        "xgboost_regressor": XGBRegressor(n_estimators=15, max_depth=3, random_state=0),
        "lightgbm_regressor": LGBMRegressor(n_estimators=15, num_leaves=8, verbose=-1, random_state=0),
    }.items():
        vectors(name, model, xd, yd, rows_d)
    for name, model, y, zipmap in [
        ("logistic_binary_zipmap", LogisticRegression(max_iter=500), yb, None),
        ("logistic_binary", LogisticRegression(max_iter=500), yb, False),
        ("logistic_multi", make_pipeline(StandardScaler(), LogisticRegression()), yi, False),
        ("logistic_strings_zipmap", LogisticRegression(max_iter=500), ys, None),
        ("normalizer_logistic", make_pipeline(Normalizer("l1"), LogisticRegression(max_iter=500)), yi, False),
        ("binarizer_bayes", make_pipeline(Binarizer(threshold=2.5), LogisticRegression()), yi, False),
        ("gaussian_nb", GaussianNB(), yi, False),
        ("linear_svc", LinearSVC(random_state=0), yi, None),
        ("svc_probability", SVC(probability=True, random_state=0), yi, False),
        ("svc_binary", SVC(random_state=0), yb, False),
        ("knn", KNeighborsClassifier(5), yi, False),
        ("decision_tree", DecisionTreeClassifier(max_depth=4, random_state=0), ys, False),
        ("random_forest", RandomForestClassifier(20, max_depth=4, random_state=0), yi, False),
        ("random_forest_zipmap", RandomForestClassifier(10, max_depth=3, random_state=0), yi, None),
        ("random_forest_binary", RandomForestClassifier(10, max_depth=3, random_state=0), yb, False),
        ("extra_trees", ExtraTreesClassifier(10, max_depth=4, random_state=0), ys, False),
        ("gradient_boosting", GradientBoostingClassifier(n_estimators=8, random_state=0), yi, False),
        ("gradient_boosting_binary", GradientBoostingClassifier(n_estimators=8, random_state=0), yb, False),
        ("hist_gradient_boosting", HistGradientBoostingClassifier(max_iter=8, random_state=0), yi, False),
        ("mlp", make_pipeline(StandardScaler(), MLPClassifier((10, 8), max_iter=300, random_state=0)), yi, False),
        ("mlp_binary_tanh", MLPClassifier((6,), activation="tanh", max_iter=300, random_state=0), yb, False),
        ("xgboost", XGBClassifier(n_estimators=8, max_depth=3, random_state=0), yi, False),
        ("xgboost_binary", XGBClassifier(n_estimators=8, max_depth=3, random_state=0), yb, False),
        ("lightgbm", LGBMClassifier(n_estimators=8, num_leaves=6, verbose=-1, random_state=0), yi, False),
        ("lightgbm_binary", LGBMClassifier(n_estimators=8, num_leaves=6, verbose=-1, random_state=0), yb, None),
    ]:
        vectors(name, model, xi, y, rows_i, zipmap)

    holes = xi.copy()
    holes[rng.random(holes.shape) < 0.1] = np.nan
    rows_h = rows_i.copy()
    rows_h[rng.random(rows_h.shape) < 0.2] = np.nan
    vectors("imputer_forest", make_pipeline(SimpleImputer(), RandomForestClassifier(5, max_depth=3, random_state=0)),
            holes, yi, rows_h, False)
    vectors("xgboost_missing", XGBClassifier(n_estimators=8, max_depth=3, random_state=0), holes, yi, rows_h, False)
    vectors("lightgbm_missing", LGBMClassifier(n_estimators=8, num_leaves=6, verbose=-1, random_state=0), holes, yi,
            rows_h, False)
    vectors("hist_gradient_missing", HistGradientBoostingClassifier(max_iter=8, random_state=0), holes, yi, rows_h,
            False)
    text()
    mixed()


def text():
    texts = ["the food was great", "great service and a great view", "bad food", "the room was dirty and bad",
             "we loved the view", "never again, so bad", "Lovely staff, GREAT food", "dirty, loud, bad"]
    y = np.array(["good", "good", "bad", "bad", "good", "bad", "good", "bad"])
    asked = np.array([["great FOOD and a view"], ["bad and dirty"], ["unknown words only"], ["the the great bad view"]])
    for name, vec in {
        "text_tfidf": TfidfVectorizer(),
        "text_count_bigrams": CountVectorizer(ngram_range=(1, 2)),
        "text_sublinear": TfidfVectorizer(sublinear_tf=True, stop_words=["the", "a"]),
    }.items():
        model = make_pipeline(vec, LogisticRegression())
        model.fit(texts, y)
        converted = to_onnx(model, initial_types=[("text", StringTensorType([None, 1]))],
                            options={id(model): {"zipmap": False}}, target_opset=OPSET)
        save(name, converted, {"text": asked})


def mixed():
    import pandas

    rng = np.random.default_rng(3)
    n = 80
    frame = pandas.DataFrame({
        "age": rng.uniform(18, 80, n).astype(np.float32),
        "income": rng.uniform(1, 9, n).astype(np.float32),
        "city": rng.choice(["Berlin", "Köln", "Paris"], n),
        "plan": rng.choice(["free", "pro"], n),
    })
    y = ((frame["age"] > 40) & (frame["city"] != "Paris")).astype(int)
    inputs = [("age", FloatTensorType([None, 1])), ("income", FloatTensorType([None, 1])),
              ("city", StringTensorType([None, 1])), ("plan", StringTensorType([None, 1]))]
    asked = {
        "age": np.array([[20], [50], [70]], np.float32), "income": np.array([[1], [5], [9]], np.float32),
        "city": np.array([["Paris"], ["Köln"], ["Rome"]]), "plan": np.array([["pro"], ["free"], ["pro"]]),
    }
    one_hot = ColumnTransformer([("n", StandardScaler(), ["age", "income"]),
                                 ("c", OneHotEncoder(handle_unknown="ignore"), ["city", "plan"])])
    ordinal = ColumnTransformer([("n", "passthrough", ["age", "income"]),
                                 ("c", OrdinalEncoder(), ["city", "plan"])])
    for name, pre, clf in [("mixed_one_hot", one_hot, LogisticRegression()),
                           ("mixed_ordinal", ordinal, DecisionTreeClassifier(max_depth=4, random_state=0))]:
        model = make_pipeline(pre, clf)
        model.fit(frame, y)
        if name == "mixed_ordinal":
            asked = dict(asked, city=np.array([["Paris"], ["Köln"], ["Berlin"]]))
        converted = to_onnx(model, initial_types=inputs, options={id(model): {"zipmap": False}}, target_opset=OPSET)
        save(name, converted, asked)


if __name__ == "__main__":
    main()
