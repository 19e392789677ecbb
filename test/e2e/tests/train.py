"""Runs in MLServer's environment: train.py sklearn|xgboost DIR writes a model there as its
library saves it, and expected.json with rows and what the library itself predicts for them."""

import json
import pathlib
import sys

import numpy as np
from sklearn.datasets import load_iris

kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
x, y = load_iris(return_X_y=True)
x = x.astype(np.float32)
rows = np.random.default_rng(4).uniform(0.1, 8, (200, 4)).astype(np.float32)
(folder / "model").mkdir()
if kind == "sklearn":
    import joblib
    from sklearn.ensemble import RandomForestClassifier

    made = RandomForestClassifier(25, random_state=0).fit(x, y)
    joblib.dump(made, folder / "model" / "model.joblib")
    predictions = made.predict(rows)
else:
    import xgboost

    made = xgboost.XGBRegressor(n_estimators=20, max_depth=3).fit(x, y)
    made.get_booster().save_model(folder / "model" / "model.json")
    predictions = made.predict(rows)
(folder / "expected.json").write_text(json.dumps({"rows": rows.tolist(), "predictions": predictions.tolist()}))
