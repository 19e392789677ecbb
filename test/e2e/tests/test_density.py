"""Many models in one process: examples/density's models as TrainedModels, more than fit the memory."""

import importlib.util
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc

from standin import REPO, engine_pids, eventually, isvc

MODELS, FIT = 40, 10
MEMORY = 272 << 10  # a model's file has 258 KiB


def example():
    """examples/density/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make", REPO / "examples/density/make.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def trained_model(name, uri, service="many", memory=MEMORY):
    return {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel", "metadata": {"name": name},
            "spec": {"inferenceService": service, "model": {"framework": "onnx", "memory": str(memory), "storageUri": str(uri)}}}


def body(rows=1):
    return {"inputs": [{"name": "x", "shape": [rows, 32], "datatype": "FP32", "data": [1.0] * 32 * rows}]}


def right(k):
    return 32 * k / 1000 + k


def metrics(up):
    got = requests.get(f"{up.url}/serving/default/many/metrics", timeout=30)
    assert got.status_code == 200, got.text
    out = {}
    for line in got.text.splitlines():
        if line.startswith("stationmaster_runtime_model") and "{" not in line:
            name, value = line.split(" ")
            out[name.removeprefix("stationmaster_runtime_")] = float(value)
    return out


@pytest.fixture(scope="module")
def many(up, tmp_path_factory):
    """A service of 40 models with memory for 10, and where the models are."""
    folder, make = tmp_path_factory.mktemp("models"), example()
    for k in range(MODELS):
        path = folder / f"model-{k}" / "model.onnx"
        path.parent.mkdir()
        path.write_bytes(make.model(k))
    up.apply(isvc("many", {"onnx": {"args": [f"--memory_budget={FIT * MEMORY}"]}}),
             *(trained_model(f"model-{k}", folder / f"model-{k}") for k in range(MODELS)))
    up.wait_ready("many")
    up.kubectl("wait", "--for=condition=Ready", "trainedmodel", "--all", "--timeout=60s")
    yield folder
    up.delete("many")


def test_forty_models_answer_rightly_with_memory_for_ten(up, many):
    most, done = [], threading.Event()

    def watch():
        while not done.wait(0.05):
            most.append(metrics(up))

    def client(seed):
        rng, wrong = random.Random(seed), []
        session, grpc = requests.Session(), triton_grpc.InferenceServerClient(up.grpc)
        x = triton_grpc.InferInput("x", [1, 32], "FP32")
        x.set_data_from_numpy(np.ones((1, 32), np.float32))
        for _ in range(60):
            k = rng.randrange(MODELS)
            way = rng.randrange(4)
            if way == 3:
                y = grpc.infer(f"model-{k}", [x]).as_numpy("y")[0]
            else:
                path, headers, ask = [
                    (f"/v2/models/model-{k}/infer", {}, body()),
                    (f"/serving/default/many/v2/models/model-{k}/infer", {}, body()),
                    (f"/v1/models/model-{k}:predict", {"Host": "many-default.localhost"}, {"instances": [[1.0] * 32]}),
                ][way]
                got = session.post(up.url + path, json=ask, headers=headers, timeout=60)
                if got.status_code != 200:
                    wrong.append((k, way, got.status_code, got.text[:300]))
                    continue
                answer = got.json()
                y = np.array(answer["predictions"][0] if way == 2 else answer["outputs"][0]["data"])
            if y.shape != (2000,) or np.abs(y - right(k)).max() > 1e-3:
                wrong.append((k, way, y[:4]))
        grpc.close()
        return wrong

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            wrong = [w for part in pool.map(client, range(8)) for w in part]
    finally:
        done.set()
        watcher.join()
    assert not wrong
    assert most and all(m["models_bytes"] <= m["models_budget_bytes"] == FIT * MEMORY for m in most)
    assert all(m["models_loaded"] <= FIT for m in most)
    assert len(engine_pids(up, "--models_config")) == 1
    end = metrics(up)
    assert end["models"] == MODELS and end["model_loads_total"] >= MODELS and end["model_evictions_total"] >= MODELS - FIT
    assert end["model_load_failures_total"] == 0


def test_models_come_and_go_while_the_service_runs(up, many):
    before = engine_pids(up, "--models_config")
    up.apply(trained_model("new", many / "model-7"))
    up.kubectl("wait", "--for=condition=Ready", "trainedmodel/new", "--timeout=60s")
    status = up.get("new", kind="trainedmodel")["status"]
    got = requests.post(status["address"]["url"], json=body(), timeout=30)
    assert got.status_code == 200 and abs(got.json()["outputs"][0]["data"][0] - right(7)) < 1e-3, got.text
    up.kubectl("delete", "trainedmodel", "new")
    eventually(lambda: requests.post(f"{up.url}/v2/models/new/infer", json=body(), timeout=30).status_code == 404, 30)
    assert engine_pids(up, "--models_config") == before


def test_no_client_takes_a_model_away(up, many):
    at = f"{up.url}/serving/default/many/v2/repository"
    assert requests.post(f"{at}/models/model-3/load", timeout=30).status_code == 200
    assert requests.post(f"{at}/models/model-3/unload", timeout=30).status_code == 200

    def state():
        [line] = [m for m in requests.post(f"{at}/index", timeout=30).json() if m["name"] == "model-3"]
        return line

    eventually(lambda: state()["state"] == "UNAVAILABLE" and "the next request loads it" in state()["reason"], 30)
    got = requests.post(f"{up.url}/v2/models/model-3/infer", json=body(), timeout=30)
    assert got.status_code == 200 and abs(got.json()["outputs"][0]["data"][0] - right(3)) < 1e-3, got.text


def test_what_cannot_be_served_says_why(up, many, tmp_path):
    (tmp_path / "model.onnx").write_text("no model")
    up.apply(trained_model("broken", tmp_path), trained_model("huge", tmp_path, memory="1Gi"), trained_model("lost", tmp_path, service="nobody"))
    eventually(lambda: requests.post(f"{up.url}/v2/models/broken/infer", json=body(), timeout=30).status_code == 503, 30)
    got = requests.post(f"{up.url}/v2/models/broken/infer", json=body(), timeout=30)
    assert "can't be loaded" in got.json()["error"] and got.headers["Retry-After"], got.text
    for name, reason in {"huge": "MemoryResourceNotAvailable", "lost": "InferenceServiceNotFound"}.items():
        up.kubectl("wait", "--for=condition=Ready=False", f"trainedmodel/{name}", "--timeout=30s")
        [ready] = [c for c in up.get(name, kind="trainedmodel")["status"]["conditions"] if c["type"] == "Ready"]
        assert ready["reason"] == reason and ready["message"]
    up.kubectl("delete", "trainedmodel", "broken", "huge", "lost")


def condition(up, name, kind="Ready"):
    found = [c for c in up.get(name, kind="trainedmodel")["status"]["conditions"] if c["type"] == kind]
    return found[0] if found else {"status": "Unknown"}


def test_a_model_whose_bytes_are_missing_is_not_ready(up, many, tmp_path):
    """It says so before anybody asks, and is served once they are there."""
    up.apply(trained_model("gone", tmp_path / "gone"))
    ready = eventually(lambda: (c := condition(up, "gone"))["status"] == "False" and c, 30)
    assert ready["reason"] == "ModelNotFetched" and str(tmp_path / "gone") in ready["message"], ready
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "model.onnx").write_bytes(example().model(9))
    up.kubectl("wait", "--for=condition=Ready", "trainedmodel/gone", "--timeout=90s")
    got = requests.post(f"{up.url}/v2/models/gone/infer", json=body(), timeout=30)
    assert got.status_code == 200 and abs(got.json()["outputs"][0]["data"][0] - right(9)) < 1e-3, got.text
    up.kubectl("delete", "trainedmodel", "gone")


def test_an_update_whose_bytes_cannot_be_had_leaves_the_model_that_serves(up, many, tmp_path):
    def answer():
        got = requests.post(f"{up.url}/v2/models/moves/infer", json=body(), timeout=30)
        assert got.status_code == 200, got.text
        return round(got.json()["outputs"][0]["data"][0] - right(0))

    up.apply(trained_model("moves", many / "model-1"))
    up.kubectl("wait", "--for=condition=Ready", "trainedmodel/moves", "--timeout=60s")
    assert answer() == 1
    for uri, reason in {str(tmp_path / "nowhere"): "ModelNotFetched", "s3://bucket/model": "StorageNotSupported"}.items():
        up.apply(trained_model("moves", uri))
        ready = eventually(lambda: (c := condition(up, "moves")).get("reason") == reason and c, 30)
        assert ready["status"] == "False" and "serves on" in ready["message"], ready
        assert answer() == 1
    up.apply(trained_model("moves", many / "model-2"))
    eventually(lambda: condition(up, "moves")["status"] == "True", 60)
    assert answer() == 2
    # Larger than all the memory for models, which only its bytes tell.
    (tmp_path / "model.onnx").write_bytes(bytes(4 << 20))
    up.apply(trained_model("fat", tmp_path))
    eventually(lambda: condition(up, "fat", "MemoryResourceAvailable")["status"] == "False", 30)
    assert condition(up, "fat").get("reason") == "MemoryResourceNotAvailable"
    up.kubectl("delete", "trainedmodel", "moves", "fat")


def test_models_answer_again_after_the_control_plane_was_killed(own_up, tmp_path):
    path = tmp_path / "model-5" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(example().model(5))
    own_up.apply(isvc("many", {"onnx": {}}), trained_model("model-5", path.parent))
    own_up.wait_ready("many")
    own_up.kubectl("wait", "--for=condition=Ready", "trainedmodel/model-5", "--timeout=60s")
    before = engine_pids(own_up, "--models_config")
    own_up.kill()
    own_up.start()
    own_up.apply(trained_model("twin", path.parent))
    for name in ("model-5", "twin"):
        own_up.kubectl("wait", "--for=condition=Ready", f"trainedmodel/{name}", "--timeout=60s")
        eventually(lambda: requests.post(f"{own_up.url}/v2/models/{name}/infer", json=body(), timeout=30).status_code == 200, 30)
    assert engine_pids(own_up, "--models_config") == before
