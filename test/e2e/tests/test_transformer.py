"""A transformer written with KServe's SDK, as a process of its own before its predictor."""

import pathlib
import sys

import numpy as np
import requests

from standin import iris_session, isvc, model, outputs, random_rows, tensor

ROWS = random_rows(10)


def test_transformer_of_the_sdk(up):
    transformer = {"containers": [{
        "name": "kserve-container",
        "image": "example.invalid/transformer:1",
        "command": [sys.executable, str(pathlib.Path(__file__).with_name("transformer.py"))],
        "args": ["--predictor_protocol", "v2", "--enable_grpc", "false"],
    }]}
    up.apply(isvc("chained", model("onnx", "examples/iris/model"), transformer=transformer))
    up.wait_ready("chained", timeout=120)
    session, name = iris_session()
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(names, {name: ROWS * 2})))
    got = outputs(up.infer("chained", [tensor(name, ROWS)]))
    for n, w in want.items():
        np.testing.assert_allclose(got[n].reshape(w.shape), w + 1 if w.dtype.kind == "f" else w, rtol=0, atol=1e-5)

    # The predictor's own host goes past the transformer.
    direct = requests.post(f"{up.url}/v2/models/chained/infer", json={"inputs": [tensor(name, ROWS * 2)]},
                           headers={"Host": "chained-predictor-default.localhost"}, timeout=30)
    for n, w in want.items():
        np.testing.assert_allclose(outputs(direct)[n].reshape(w.shape), w, rtol=0, atol=1e-5)
    status = up.get("chained")["status"]
    assert set(status["components"]) == {"predictor", "transformer"}
    up.delete("chained")
