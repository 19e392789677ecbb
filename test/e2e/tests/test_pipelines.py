"""Loggers, batchers and explainers of real services: CloudEvents as the official SDK reads them,
batches as the engine's own metrics count them."""

import concurrent.futures
import contextlib
import http.server
import json
import pathlib
import re
import sys
import threading

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from cloudevents.http import from_http

from standin import eventually, iris_session, isvc, model, outputs, random_rows, tensor

IRIS = "examples/iris/model"
REQUEST = "org.kubeflow.serving.inference.request"
RESPONSE = "org.kubeflow.serving.inference.response"


@contextlib.contextmanager
def collector():
    """A sink of CloudEvents: gives its address and the list that it fills."""
    events = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            # The SDK gives the data as JSON where that is its type, else as bytes.
            event = from_http(dict(self.headers), body, data_unmarshaller=lambda b: b)
            events.append(event)
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/in", events
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def pairs(events, n):
    """The events as (request, response) by id, once there are n of each."""
    def grouped():
        by_id = {}
        for e in list(events):
            by_id.setdefault(e["id"], {})[e["type"]] = e
        whole = {i: (p[REQUEST], p[RESPONSE]) for i, p in by_id.items() if len(p) == 2}
        return whole if len(whole) >= n else None
    return eventually(grouped, 30)


def test_logger_tells_a_collector_of_requests_and_answers(up):
    rows = random_rows(2)
    with collector() as (url, events):
        service = isvc("logged", model("onnx", IRIS) | {"logger": {
            "mode": "all", "url": url, "metadataHeaders": ["x-tenant"], "metadataAnnotations": ["team"]}})
        service["metadata"]["annotations"] = {"team": "red & 100 % blü"}
        up.apply(service)
        up.wait_ready("logged")
        fields = up.get("logged")["status"]["conditions"]
        assert not [c for c in fields if c["type"] == "FieldsInEffect" and c["status"] == "False"], fields

        good = {"instances": rows.tolist()}
        answer = requests.post(f"{up.url}/v1/models/logged:predict", json=good, headers={"Ce-Id": "mine", "X-Tenant": "a"}, timeout=30)
        assert answer.status_code == 200, answer.text
        bad = requests.post(f"{up.url}/v1/models/logged:predict", data="nonsense", headers={"Ce-Id": "bad"}, timeout=30)
        assert bad.status_code == 400
        name = iris_session()[1]
        x = tritonclient.grpc.InferInput(name, list(rows.shape), "FP32")
        x.set_data_from_numpy(rows)
        with tritonclient.grpc.InferenceServerClient(up.grpc) as client:
            client.infer("logged", [x], headers={"ce-id": "call"})

        got = pairs(events, 3)
        request, response = got["mine"]
        for e in (request, response):
            assert e["inferenceservicename"] == "logged" and e["namespace"] == "default" and e["component"] == "predictor"
            assert e["endpoint"] == "default" and e["source"] == "logged-predictor-00001"
            assert json.loads(e["metadata"]) == {"X-Tenant": ["a"]}
            assert json.loads(e["annotations"]) == {"team": "red & 100 % blü"}
            assert e["requestid"] == answer.headers["X-Request-Id"] and e["datacontenttype"].startswith("application/json")
        assert json.loads(request.data) == good and response.data == answer.content
        assert response["statuscode"] == "200" and got["bad"][1]["statuscode"] == "400"
        assert got["bad"][0].data == b"nonsense" and got["bad"][1].data == bad.content
        call, reply = got["call"]
        assert reply["grpcstatus"] == "0" and call["grpcmethod"] == "/inference.GRPCInferenceService/ModelInfer"
        infer = tritonclient.grpc.service_pb2.ModelInferRequest.FromString(call.data)
        assert infer.raw_input_contents[0] == rows.tobytes()
        assert len(tritonclient.grpc.service_pb2.ModelInferResponse.FromString(reply.data).outputs) == 2

        # A logger that is taken away has no effect from then on, and nothing starts anew.
        del service["spec"]["predictor"]["logger"]
        up.apply(service)
        before = len(events)

        def quiet():
            nonlocal before
            requests.post(f"{up.url}/v1/models/logged:predict", json=good, timeout=30)
            same, before = before == len(events), len(events)
            return same
        eventually(quiet, 30, poll=0.5)
        assert up.get("logged")["status"]["components"]["predictor"]["latestReadyRevision"] == "logged-predictor-00001"
    up.delete("logged")


def engine_calls(up, name):
    """How many inferences the engine itself counted, by protocol, and all."""
    text = requests.get(f"{up.url}/metrics", headers={"Host": f"{name}-default.localhost"}, timeout=30).text
    found = re.findall(r'^stationmaster_runtime_requests_total\{(.*)\} (\d+)', text, re.M)
    assert found or "stationmaster_runtime" in text, text[:2000]
    return sum(int(n) for labels, n in found)


@pytest.fixture(scope="module")
def batched(up):
    up.apply(isvc("batched", model("onnx", IRIS) | {"batcher": {"maxBatchSize": 32, "maxLatency": 500, "timeout": 60}}))
    up.wait_ready("batched")
    yield up
    up.delete("batched")


def v1(up, row):
    answer = requests.post(f"{up.url}/v1/models/batched:predict", json={"instances": [row.tolist()]}, timeout=60)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["message"] == "" and len(body["predictions"]) == 1
    return body["predictions"][0], body["batchId"]


def v2(up, row):
    answer = up.infer("batched", [tensor(iris_session()[1], row.reshape(1, -1))])
    got = outputs(answer)
    return {n: v[0].tolist() for n, v in got.items()}, answer.headers.get("X-Stationmaster-Batch")


def binary(up, row):
    x = tritonclient.http.InferInput(iris_session()[1], [1, 4], "FP32")
    x.set_data_from_numpy(row.reshape(1, -1), binary_data=True)
    wanted = [tritonclient.http.InferRequestedOutput(o.name, binary_data=True) for o in iris_session()[0].get_outputs()]
    with tritonclient.http.InferenceServerClient(up.http) as client:
        got = client.infer("batched", [x], outputs=wanted)
    return {o["name"]: got.as_numpy(o["name"])[0].tolist() for o in got.get_response()["outputs"]}, None


def call(up, row):
    x = tritonclient.grpc.InferInput(iris_session()[1], [1, 4], "FP32")
    x.set_data_from_numpy(row.reshape(1, -1))
    with tritonclient.grpc.InferenceServerClient(up.grpc) as client:
        got = client.infer("batched", [x])
    return {o.name: got.as_numpy(o.name)[0].tolist() for o in got.get_response().outputs}, None


@pytest.mark.parametrize("ask", [v1, v2, binary, call], ids=["V1", "V2", "V2-binary", "gRPC"])
def test_batcher_gives_each_its_rows_and_calls_the_engine_less(batched, ask):
    rows = random_rows(32, seed=7)
    session, name = iris_session()
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(names, {name: rows})))
    before = engine_calls(batched, "batched")
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda row: ask(batched, row), rows))
    calls = engine_calls(batched, "batched") - before
    for i, (got, _) in enumerate(answers):
        for n in names:
            np.testing.assert_allclose(np.array(got[n]).flatten(), np.array(want[n][i]).flatten(), rtol=0, atol=1e-4)
    assert 1 <= calls <= 8, f"{calls} calls of the engine for 32 requests"
    batches = {b for _, b in answers if b}
    assert len(batches) <= calls, f"{len(batches)} batches in {calls} calls"


def test_nobody_fails_for_a_neighbour(batched):
    rows = random_rows(8, seed=9)

    def one(i):
        row = rows[i].tolist() if i else ["not a number"] * 4
        return requests.post(f"{batched.url}/v1/models/batched:predict", json={"instances": [row]}, timeout=60)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert [a.status_code for a in answers] == [400] + [200] * 7, [a.text for a in answers]


EXPLAIN = {"command": [sys.executable, str(pathlib.Path(__file__).with_name("explainer.py"))]}


@pytest.mark.parametrize("explains", [
    pytest.param({"containers": [{"name": "kserve-container", "image": "example.invalid/explainer:1", **EXPLAIN}]}, id="own"),
    # Without a command it would be an image, which one machine can't run.
    pytest.param({"art": {"type": "SquareAttack", "config": {"nb_classes": "3"}, **EXPLAIN}}, id="art"),
])
def test_explainer_is_asked_by_v1_and_v2_and_asks_its_predictor(up, explains):
    with collector() as (url, events):
        explainer = explains | {"logger": {"mode": "all", "url": url}}
        predictor = model("onnx", IRIS) | {"logger": {"mode": "request", "url": url}}
        up.apply(isvc("explained", predictor, explainer=explainer))
        up.wait_ready("explained", timeout=120)
        rows = random_rows(2, seed=3)
        v1 = requests.post(f"{up.url}/v1/models/explained:explain", json={"instances": rows.tolist()}, timeout=60)
        assert v1.status_code == 200, v1.text
        session, name = iris_session()
        label, probabilities = (o.name for o in session.get_outputs())

        def first(x):
            return np.asarray(session.run([probabilities], {name: x.astype(np.float32)})[0])[:, 0]
        want = np.stack([first(rows + np.eye(4)[i]) - first(rows) for i in range(4)], axis=1)
        np.testing.assert_allclose(np.array(v1.json()["explanations"]), want, rtol=0, atol=1e-4)

        v2 = requests.post(f"{up.url}/v2/models/explained/explain", json={"inputs": [tensor("x", rows)]}, timeout=60)
        np.testing.assert_allclose(outputs(v2)["explanations"], want, rtol=0, atol=1e-4)
        # What isn't an explanation goes to the predictor.
        direct = requests.post(f"{up.url}/v1/models/explained:predict", json={"instances": rows.tolist()}, timeout=60)
        assert len(direct.json()["predictions"]) == 2

        # The explainer reaches its predictor through the gateway, so that one's logger sees it.
        def of(component):
            return [e for e in list(events) if e["component"] == component]
        eventually(lambda: len(of("explainer")) == 4 and len(of("predictor")) == 5, 30)
        assert {e["type"] for e in of("predictor")} == {REQUEST}
    up.delete("explained")


def test_collocated_transformer_takes_the_predictors_requests(up):
    """A transformer of the SDK in the predictor's own pod, as KServe's collocation has it."""
    with collector() as (url, events):
        ready = {"httpGet": {"path": "/v2/health/ready", "port": 8085}}  # the runtime's own asks 8080, which is the transformer's here
        predictor = model("onnx", IRIS, args=["--http_port=8085"], ports=[{"containerPort": 8085}], readinessProbe=ready) | {
            "containers": [{
                "name": "transformer-container", "image": "example.invalid/transformer:1",
                "command": [sys.executable, str(pathlib.Path(__file__).with_name("transformer.py"))],
                "args": ["--model_name=together", "--predictor_host=localhost:8085", "--http_port=8080",
                         "--predictor_protocol=v2", "--enable_grpc=false"],
                "ports": [{"containerPort": 8080}],
            }],
            "logger": {"mode": "request", "url": url},
        }
        up.apply(isvc("together", predictor))
        up.wait_ready("together", timeout=120)
        rows = random_rows(5, seed=5)
        session, name = iris_session()
        names = [o.name for o in session.get_outputs()]
        want = dict(zip(names, session.run(names, {name: rows * 2})))
        got = outputs(up.infer("together", [tensor(name, rows)]))
        for n, w in want.items():
            np.testing.assert_allclose(got[n].reshape(w.shape), w + 1 if w.dtype.kind == "f" else w, rtol=0, atol=1e-5)
        # One request at the door; what the transformer asks its neighbour isn't the gateway's.
        eventually(lambda: len(events) == 1, 30)
        assert json.loads(events[0].data)["inputs"][0]["shape"] == [5, 4]
    up.delete("together")
