"""KServe's own scenarios for InferenceGraph, with services of its SDK and of the built-in server."""

import json
import pathlib
import sys

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import yaml

from standin import REPO, iris_manifest, iris_session, isvc, model, outputs, random_rows, tensor

SUCCESS = {"predictions": [{"message": "SUCCESS"}]}
ERROR = {"detail": "Intentional 404 code"}
NO_MATCH = {"error": "Failed to process request", "cause": "None of the routes matched with the switch condition"}
IRIS = {"instances": [[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6]]}


def picked(what):
    return {"decision_picker": what, "key1": {"name": "abc"}}


def graph(name, **nodes):
    """A graph of nodes given as (routerType, steps)."""
    return {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "InferenceGraph", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodes": {n: {"routerType": kind, "steps": steps} for n, (kind, steps) in nodes.items()}}}


def to(service, **more):
    return {"serviceName": service, **more}


ok, err = "success-200", "error-404"
on_error, on_success = "[@this].#(decision_picker==ERROR)", "[@this].#(decision_picker==SUCCESS)"

# Of each of KServe's scenarios: the graph, and what it answers to what.
SCENARIOS = {
    "1-soft-failure-at-the-end": (dict(root=("Sequence", [to(ok), to(err, data="$request")])), [(IRIS, 404, ERROR)]),
    "2-soft-failure-first": (dict(root=("Sequence", [to(err), to(ok, data="$request")])), [(IRIS, 200, SUCCESS)]),
    "3-hard-failure-first": (
        dict(root=("Sequence", [to(err, name="rootStep1", dependency="Hard"), to(ok, name="rootStep2", dependency="Soft")])), [(IRIS, 404, ERROR)]),
    "4-switch": (
        dict(root=("Switch", [to(err, name="rootStep1", dependency="Hard", condition=on_error), to(ok, name="rootStep2", condition=on_success)])),
        [(picked("ERROR"), 404, ERROR), (picked("SUCCESS"), 200, SUCCESS), (picked("NO_MATCH"), 404, NO_MATCH)]),
    "5-soft-switch-that-fails": (
        dict(root=("Sequence", [{"name": "rootStep1", "nodeName": "node1", "dependency": "Soft"}, to(ok, name="rootStep2")]),
             node1=("Switch", [to(err, name="node1Step1", condition=on_error)])), [(picked("ERROR"), 200, SUCCESS)]),
    "6-hard-switch-that-fails": (
        dict(root=("Sequence", [{"name": "rootStep1", "nodeName": "node1", "dependency": "Hard"}, to(ok, name="rootStep2")]),
             node1=("Switch", [to(err, name="node1Step1", condition=on_error)])), [(picked("ERROR"), 404, ERROR)]),
    "7-soft-ensemble": (
        dict(root=("Ensemble", [to(ok, name="rootStep1"), to(err, name="rootStep2")])),
        [(picked("SUCCESS"), 200, {"rootStep1": SUCCESS, "rootStep2": ERROR})]),
    "8-hard-ensemble": (
        dict(root=("Ensemble", [to(err, name="rootStep1", dependency="Hard"), to(ok, name="rootStep2"), to(ok, name="rootStep3")])),
        [(picked("SUCCESS"), 404, ERROR)]),
    "9-soft-splitter-that-fails": (
        dict(root=("Sequence", [{"name": "rootStep1", "nodeName": "node1", "dependency": "Soft"}, to(ok, name="rootStep2")]),
             node1=("Splitter", [to(ok, weight=0), to(err, weight=100)])), [(IRIS, 200, SUCCESS)]),
    "10-hard-splitter-that-fails": (
        dict(root=("Sequence", [{"name": "rootStep1", "nodeName": "node1", "dependency": "Hard"}, to(ok, name="rootStep2")]),
             node1=("Splitter", [to(ok, weight=0), to(err, weight=100)])), [(IRIS, 404, ERROR)]),
}


@pytest.fixture(scope="module")
def steps(iris):
    """The two services that the scenarios are made of, one that succeeds and one that doesn't."""
    def service(name, answer):
        return isvc(name, {"containers": [{
            "name": "kserve-container", "image": "example.invalid/step:1",
            "command": [sys.executable, str(pathlib.Path(__file__).with_name("steps.py"))],
            "args": ["--model_name", name, "--answer", answer, "--http_port", "8080", "--enable_grpc", "false"],
            "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        }]})

    iris.apply(service(ok, "success"), service(err, "error"))
    for name in (ok, err):
        iris.wait_ready(name, timeout=180)
    yield iris
    for name in (ok, err):
        iris.delete(name)


def applied(up, manifest):
    """Applies a graph, waits for Ready and returns its host."""
    name = manifest["metadata"]["name"]
    up.apply(manifest)
    up.kubectl("wait", "--for=condition=Ready", f"inferencegraph/{name}", "--timeout=60s")
    url = up.get(name, kind="inferencegraph")["status"]["url"]
    assert url == f"http://{name}-default.localhost:{up.http_port}"
    return url.removeprefix("http://")


def removed(up, name):
    up.kubectl("delete", "inferencegraph", name)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_of_kserve(steps, scenario):
    nodes, calls = SCENARIOS[scenario]
    name = f"scenario-{scenario}"
    host = applied(steps, graph(name, **nodes))
    for body, status, answer in calls:
        # As KServe's SDK asks a graph: at its host, whatever the path.
        got = requests.post(steps.url + "/", json=body, headers={"Host": host}, timeout=30)
        assert (got.status_code, got.json()) == (status, answer)
        assert got.headers["X-Request-Id"] and got.headers["Content-Type"] == "application/json"
    removed(steps, name)


def test_v2_over_rest_and_grpc_and_from_zero(iris):
    """One address for models of several inputs: a service that sleeps is woken by a graph's step."""
    asleep = iris_manifest("sleepy")
    asleep["spec"]["predictor"]["minReplicas"] = 0
    iris.apply(asleep, isvc("text", model("onnx", "examples/text/model")))
    for name in ("sleepy", "text"):
        iris.wait_ready(name)
    session, name = iris_session()
    applied(iris, graph("classify", root=("Switch", [
        to("sleepy", condition=f'inputs.#(name=="{name}")'), to("text", condition='inputs.#(name=="text")')])))
    rows = random_rows(5)
    want = dict(zip([o.name for o in session.get_outputs()], session.run(None, {name: rows})))

    got = iris.infer("classify", [tensor(name, rows)])
    assert got.headers["X-Stationmaster-Revision"].startswith("sleepy-predictor-")
    for n, w in want.items():
        np.testing.assert_allclose(outputs(got)[n].reshape(w.shape), w, rtol=0, atol=1e-5)
    got = iris.infer("classify", [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["where is my parcel"]}])
    assert got.headers["X-Stationmaster-Revision"].startswith("text-predictor-"), got.text

    with triton_grpc.InferenceServerClient(iris.grpc) as client:
        assert client.is_model_ready("classify")
        x = triton_grpc.InferInput(name, rows.shape, "FP32")
        x.set_data_from_numpy(rows)
        over_grpc = client.infer("classify", [x], request_id="r-7")
        assert over_grpc.get_response().id == "r-7"
        for n, w in want.items():
            np.testing.assert_allclose(over_grpc.as_numpy(n).reshape(w.shape), w, rtol=0, atol=1e-5)
    removed(iris, "classify")
    for name in ("sleepy", "text"):
        iris.delete(name)


def test_a_splitter_splits_by_weight(iris):
    iris.apply(iris_manifest("iris-two"))
    iris.wait_ready("iris-two")
    host = applied(iris, graph("either", root=("Splitter", [to("iris", weight=20), to("iris-two", weight=80)])))
    seen = {"iris": 0, "iris-two": 0}
    with requests.Session() as http:
        for _ in range(1000):
            got = http.post(iris.url, json=IRIS, headers={"Host": host}, timeout=30)
            assert got.status_code == 200, got.text
            seen[got.headers["X-Stationmaster-Revision"].removesuffix("-predictor-00001")] += 1
    assert 140 <= seen["iris"] <= 260, seen  # 20 % by nearly five standard deviations
    removed(iris, "either")
    iris.delete("iris-two")


def test_what_is_wrong_is_told(iris):
    with pytest.raises(AssertionError, match="Not found: \"nowhere\""):
        iris.apply(graph("broken", root=("Sequence", [{"nodeName": "nowhere"}])))
    iris.apply(graph("waiting", root=("Sequence", [to("not-there-yet")])))
    iris.kubectl("wait", "--for=condition=Ready=False", "inferencegraph/waiting", "--timeout=30s")
    [ready] = [c for c in iris.get("waiting", kind="inferencegraph")["status"]["conditions"] if c["type"] == "Ready"]
    assert ready["reason"] == "ServiceNotFound" and "not-there-yet" in ready["message"]
    got = requests.post(f"{iris.url}/serving/default/waiting", json=IRIS, timeout=30)
    assert got.status_code == 503 and "there is no service default/not-there-yet" in got.json()["error"]
    removed(iris, "waiting")


def test_the_example_is_what_it_says(iris):
    """Its graphs, over services that are there already."""
    documents = [d for d in yaml.safe_load_all((REPO / "examples/graph/graph.yaml").read_text()) if d["kind"] == "InferenceGraph"]
    iris.apply(isvc("text", model("onnx", "examples/text/model")))
    for d in documents:
        d["metadata"]["namespace"] = "default"
        applied(iris, d)
    name = iris_session()[1]
    setosa, other = np.array([[5.1, 3.5, 1.4, 0.2]], np.float32), np.array([[6.8, 2.8, 4.8, 1.4]], np.float32)
    doubled = iris.infer("double-check", [tensor(name, setosa)]).json()
    assert set(doubled) == {"one", "other"}, json.dumps(doubled)
    assert outputs(iris.infer("double-check", [tensor(name, other)]))["label"].tolist() == [1]
    assert outputs(iris.infer("classify", [tensor(name, other)]))["label"].tolist() == [1]
    assert outputs(iris.infer("either", [tensor(name, setosa)]))["label"].tolist() == [0]
    for d in documents:
        removed(iris, d["metadata"]["name"])
    iris.delete("text")
