"""The examples' iris service, through tritonclient and plain HTTP, against onnxruntime."""

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from standin import iris_session, outputs, random_rows, tensor

ROWS = random_rows(1000)


@pytest.fixture(scope="module")
def wanted():
    """What onnxruntime says of ROWS, by output name."""
    session, name = iris_session()
    names = [o.name for o in session.get_outputs()]
    return name, dict(zip(names, session.run(names, {name: ROWS})))


def same(got, want):
    for name, w in want.items():
        np.testing.assert_allclose(np.asarray(got[name], dtype=w.dtype).reshape(w.shape), w, rtol=0, atol=1e-5, err_msg=name)


def test_request_of_the_readme(iris, wanted):
    body = {"id": "req-4711", "inputs": [{"name": wanted[0], "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
    got = requests.post(f"{iris.url}/v2/models/iris/infer", json=body, timeout=30)
    assert got.status_code == 200, got.text
    assert got.json()["id"] == "req-4711"
    session, name = iris_session()
    want = session.run(None, {name: np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)})[0]
    assert outputs(got)[session.get_outputs()[0].name].tolist() == want.tolist() == [0]
    assert got.headers["X-Request-Id"]
    assert got.headers["X-Stationmaster-Revision"]
    assert got.headers["X-Model-Digest"].startswith("sha256:")


@pytest.mark.parametrize("address", ["host", "prefix", "name"])
def test_every_way_of_addressing(iris, wanted, address):
    url, headers = {
        "host": (f"{iris.url}/v2/models/iris/infer", {"Host": "iris-default.localhost"}),
        "prefix": (f"{iris.url}/serving/default/iris/v2/models/iris/infer", {}),
        "name": (f"{iris.url}/v2/models/iris/infer", {}),
    }[address]
    got = requests.post(url, json={"inputs": [tensor(wanted[0], ROWS)]}, headers=headers, timeout=30)
    same(outputs(got), wanted[1])


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_tritonclient_http(iris, wanted, binary):
    name, want = wanted
    with triton_http.InferenceServerClient(iris.http) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("iris")
        metadata = client.get_model_metadata("iris")
        assert metadata["inputs"][0]["name"] == name
        assert {o["name"] for o in metadata["outputs"]} >= set(want)
        x = triton_http.InferInput(name, ROWS.shape, "FP32")
        x.set_data_from_numpy(ROWS, binary_data=binary)
        asked = [triton_http.InferRequestedOutput(o, binary_data=binary) for o in want]
        got = client.infer("iris", [x], outputs=asked, request_id="r-1")
        assert got.get_response()["id"] == "r-1"
        same({o: got.as_numpy(o) for o in want}, want)


def test_tritonclient_grpc(iris, wanted):
    name, want = wanted
    with triton_grpc.InferenceServerClient(iris.grpc) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("iris")
        assert client.get_model_metadata("iris").inputs[0].name == name
        x = triton_grpc.InferInput(name, ROWS.shape, "FP32")
        x.set_data_from_numpy(ROWS)
        got = client.infer("iris", [x], request_id="req-4711")
        assert got.get_response().id == "req-4711"
        same({o: got.as_numpy(o) for o in want}, want)


def test_many_at_once(iris, wanted):
    name, want = wanted
    with triton_http.InferenceServerClient(iris.http, concurrency=8) as client:
        pending = []
        for i in range(100):
            x = triton_http.InferInput(name, (10, 4), "FP32")
            x.set_data_from_numpy(ROWS[10 * i:10 * i + 10])
            pending.append(client.async_infer("iris", [x]))
        answers = [p.get_result() for p in pending]
        same({o: np.concatenate([a.as_numpy(o) for a in answers]) for o in want}, want)


@pytest.mark.parametrize("change, says", [
    ({"datatype": "INT64"}, "INT64"), ({"shape": [1, 5]}, "shape"), ({"shape": [2, 4]}, ""), ({"name": "nope"}, "missing"),
], ids=["dtype", "shape", "count", "name"])
def test_bad_input_is_refused_in_the_protocols_shape(iris, wanted, change, says):
    good = {"name": wanted[0], "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    got = requests.post(f"{iris.url}/v2/models/iris/infer", json={"inputs": [good | change]}, timeout=30)
    assert got.status_code == 400, got.text
    assert says in got.json()["error"]


def test_unknown_model_is_404_in_both_protocols(iris):
    got = requests.post(f"{iris.url}/v2/models/nope/infer", json={"inputs": []}, timeout=30)
    assert got.status_code == 404 and "nope" in got.json()["error"]
    with triton_grpc.InferenceServerClient(iris.grpc) as client:
        with pytest.raises(triton_grpc.InferenceServerException) as e:
            client.get_model_metadata("nope")
        assert "NOT_FOUND" in str(e.value.status())
