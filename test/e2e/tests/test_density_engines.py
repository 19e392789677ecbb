"""Many models in one MLServer or Triton: TrainedModels that an agent beside the engine loads and unloads."""

import json
import os
import signal
import subprocess
import textwrap
import time

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc

from standin import engine_pids, eventually, isvc
from test_density import condition
from test_engines import why_no_triton

# Decision trees that tell one constant class each, so that every model has an answer of its own.
TRAIN = """
import sys, pathlib, joblib
from sklearn.dummy import DummyClassifier
for n in range(4):
    at = pathlib.Path(sys.argv[1]) / str(n) / ("model.joblib" if n % 2 else "any.joblib")
    at.parent.mkdir()
    joblib.dump(DummyClassifier(strategy="constant", constant=n).fit([[0] * 4] * 4, [0, 1, 2, 3]), at)
"""

MODEL_PY = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", np.full(1, %d, np.int64))]) for _ in requests]
"""

CONFIG = """
    # the name of a model, not "this"
    name: "whatever"
    backend: "python"
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 1, 4 ] } ]
    output [ { name: "y" data_type: TYPE_INT64 dims: [ 1 ] } ]
    instance_group [ { kind: KIND_CPU } ]
"""


class Engine:
    """A service of many models on one engine."""

    def __init__(self, up, name, fmt, folder, process):
        self.up, self.name, self.fmt, self.folder, self.process = up, name, fmt, folder, process

    def model(self, name, n, memory="1Mi"):
        uri = self.folder / str(n) if isinstance(n, int) else n
        return {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel", "metadata": {"name": name},
                "spec": {"inferenceService": self.name, "model": {"framework": self.fmt, "memory": memory, "storageUri": str(uri)}}}

    def apply(self, name, n, ready=True, **more):
        self.up.apply(self.model(name, n, **more))
        if ready:
            self.up.kubectl("wait", "--for=condition=Ready", f"trainedmodel/{name}", "--timeout=120s")

    def rest(self, name):
        ask = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
        return requests.post(f"{self.up.url}/v2/models/{name}/infer", json=ask, timeout=60)

    def says(self, name):
        got = self.rest(name)
        assert got.status_code == 200, got.text
        return got.json()["outputs"][0]["data"][0]

    def grpc(self, name):
        with triton_grpc.InferenceServerClient(self.up.grpc) as client:
            x = triton_grpc.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            response = client.infer(name, [x])
            return int(response.as_numpy(response.get_response().outputs[0].name).ravel()[0])

    def pids(self):
        """The engine's own processes, without the agent and what the engine starts for a model."""
        return engine_pids(self.up, {"mlserver": "mlserver start", "tritonserver": "--model-control-mode"}[self.process])


@pytest.fixture(scope="module", params=["mlserver", "tritonserver"])
def engine(request, up, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "mlserver":
        subprocess.run([os.environ["E2E_MLSERVER_PYTHON"], "-c", TRAIN, str(folder)], check=True, timeout=180)
        fmt, broken = "sklearn", "any.joblib"
    else:
        if reason := why_no_triton():
            pytest.skip(reason)
        for n in range(4):
            (folder / str(n) / "1").mkdir(parents=True)
            (folder / str(n) / "1" / "model.py").write_text(MODEL_PY % n)
            (folder / str(n) / "config.pbtxt").write_text(textwrap.dedent(CONFIG))
        fmt, broken = "triton", "1/model.py"
    (folder / "broken" / broken).parent.mkdir(parents=True)
    (folder / "broken" / broken).write_text("no model (")
    if request.param == "tritonserver":
        (folder / "broken" / "config.pbtxt").write_text(textwrap.dedent(CONFIG))
    e = Engine(up, f"many-{request.param}", fmt, folder, request.param)
    up.apply(isvc(e.name, {"model": {"modelFormat": {"name": fmt}, "protocolVersion": "v2"}}),
             *(e.model(f"{request.param}-{n}", n) for n in range(3)))
    up.wait_ready(e.name, timeout=240)
    up.kubectl("wait", "--for=condition=Ready", *(f"trainedmodel/{request.param}-{n}" for n in range(3)), "--timeout=120s")
    yield e
    up.delete(e.name)


@pytest.mark.timeout(600)
class TestManyModels:
    def test_each_answers_by_its_name(self, engine):
        for n in range(3):
            assert engine.says(f"{engine.process}-{n}") == n
            assert engine.grpc(f"{engine.process}-{n}") == n
        assert len(engine.pids()) == 1

    def test_models_come_change_and_go_without_a_restart(self, engine):
        before = engine.pids()
        engine.apply("comes", 3)
        assert engine.says("comes") == 3 and engine.grpc("comes") == 3
        engine.apply("comes", 1)
        assert engine.says("comes") == 1
        engine.up.kubectl("delete", "trainedmodel", "comes")
        eventually(lambda: engine.rest("comes").status_code == 404, 60)
        at = f"{engine.up.url}/serving/default/{engine.name}/v2/repository/index"
        eventually(lambda: "comes" not in [m["name"] for m in requests.post(at, json={}, timeout=30).json() if m.get("state") == "READY"], 60)
        assert engine.pids() == before

    @pytest.mark.parametrize("uri, reason", [("broken", "ModelNotLoaded"), ("nowhere", "ModelNotFetched")])
    def test_an_update_that_fails_leaves_the_model_that_serves(self, engine, uri, reason):
        engine.apply("keeps", 2)
        engine.apply("keeps", engine.folder / uri, ready=False)
        ready = eventually(lambda: (c := condition(engine.up, "keeps")).get("reason") == reason and c, 60)
        assert ready["status"] == "False" and "serves on" in ready["message"], ready
        assert engine.says("keeps") == 2
        engine.up.kubectl("delete", "trainedmodel", "keeps")

    def test_one_that_can_not_be_loaded_keeps_nobody_away(self, engine):
        engine.apply("cannot", engine.folder / "broken", ready=False)
        eventually(lambda: condition(engine.up, "cannot").get("reason") == "ModelNotLoaded", 60)
        for _ in range(30):  # longer than a replica's readiness takes to follow
            assert engine.says(f"{engine.process}-1") == 1
            time.sleep(0.2)
        engine.up.kubectl("delete", "trainedmodel", "cannot")

    def test_what_does_not_fit_beside_the_others_is_refused(self, engine):
        engine.apply("fits-not", 0, ready=False, memory="1534Mi")
        eventually(lambda: condition(engine.up, "fits-not", "MemoryResourceAvailable")["status"] == "False", 60)
        assert engine.rest("fits-not").status_code == 404
        assert engine.says(f"{engine.process}-1") == 1
        engine.up.kubectl("delete", "trainedmodel", "fits-not")

    def test_an_engine_that_was_killed_has_its_models_again(self, engine):
        for pid in engine.pids():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: all(engine.rest(f"{engine.process}-{n}").status_code == 200 for n in range(3)), 240)
        assert [engine.says(f"{engine.process}-{n}") for n in range(3)] == [0, 1, 2]

    def test_a_second_replica_has_them_before_it_is_asked(self, engine):
        engine.up.kubectl("patch", "inferenceservice", engine.name, "--type=merge", "-p", json.dumps({"spec": {"predictor": {"minReplicas": 2, "maxReplicas": 2}}}))

        def two():
            replicas = engine.up.get(engine.name)["status"].get("modelStatus", {}).get("copies", {})
            for n in range(3):
                assert engine.rest(f"{engine.process}-{n}").status_code == 200
            return replicas.get("totalCopies") == 2

        eventually(two, 240)
        for _ in range(6):
            assert [engine.says(f"{engine.process}-{n}") for n in range(3)] == [0, 1, 2]
