"""Real engines through the catalogue's runtimes: MLServer, Triton and llama.cpp."""

import json
import os
import pathlib
import subprocess
import textwrap
import time

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from standin import ENGINES, eventually, isvc, model, outputs, tensor


@pytest.mark.parametrize("kind", ["sklearn", "xgboost"])
def test_mlserver(up, tmp_path, kind):
    """A model as the library saved it, served unchanged by KServe's mlserver runtime."""
    train = pathlib.Path(__file__).with_name("train.py")
    subprocess.run([os.environ["E2E_MLSERVER_PYTHON"], str(train), kind, str(tmp_path)], check=True, timeout=120)
    expected = json.loads((tmp_path / "expected.json").read_text())
    name = f"ml-{kind}"
    up.apply(isvc(name, model(kind, f"file://{tmp_path}/model", protocolVersion="v2")))
    up.wait_ready(name, timeout=180)
    assert up.get(name)["status"]["clusterServingRuntimeName"] == "kserve-mlserver"
    rows = np.array(expected["rows"], np.float32)
    want = np.array(expected["predictions"])

    [got] = outputs(up.infer(name, [tensor("predict", rows)])).values()
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=0, atol=1e-5)

    # Over gRPC too: natively, or by our translation.
    with triton_grpc.InferenceServerClient(up.grpc) as client:
        x = triton_grpc.InferInput("predict", rows.shape, "FP32")
        x.set_data_from_numpy(rows)
        answer = client.infer(name, [x])
        [out] = answer.get_response().outputs
        np.testing.assert_allclose(answer.as_numpy(out.name).reshape(want.shape), want, rtol=0, atol=1e-5)
    up.delete(name)


TRITON_CONFIG = """
name: "NAME"
backend: "python"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

TRITON_MODEL = textwrap.dedent('''
    import triton_python_backend_utils as pb

    class TritonPythonModel:
        def execute(self, requests):
            def answer(r):
                a, b = (pb.get_input_tensor_by_name(r, n).as_numpy() for n in "AB")
                return pb.InferenceResponse([pb.Tensor("SUM", a + b)])
            return [answer(r) for r in requests]
''')


def why_no_triton():
    """The reason why the bundled server can't run on this machine, or None."""
    command = pathlib.Path(ENGINES) / "tritonserver"
    if not command.exists():
        return "the bundled tritonserver wasn't set up"
    got = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60)
    if "--model-store" in got.stdout + got.stderr:
        return None
    return f"the bundled tritonserver doesn't start here: {(got.stderr or got.stdout).strip()[-300:]}"


def test_triton(up, tmp_path):
    if reason := why_no_triton():
        pytest.skip(reason)
    name = "addsub"
    (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / name / "config.pbtxt").write_text(TRITON_CONFIG.replace("NAME", name))
    (tmp_path / name / "1" / "model.py").write_text(TRITON_MODEL)
    up.apply(isvc(name, model("triton", f"file://{tmp_path}", protocolVersion="v2")))
    up.wait_ready(name, timeout=120)
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), 0.5, np.float32)
    got = outputs(up.infer(name, [tensor("A", a), tensor("B", b)]))
    np.testing.assert_allclose(got["SUM"], a + b)
    for lib, client in ((triton_http, triton_http.InferenceServerClient(up.http)),
                        (triton_grpc, triton_grpc.InferenceServerClient(up.grpc))):
        with client:
            xs = []
            for n, v in (("A", a), ("B", b)):
                x = lib.InferInput(n, v.shape, "FP32")
                x.set_data_from_numpy(v)
                xs.append(x)
            np.testing.assert_allclose(client.infer(name, xs).as_numpy("SUM"), a + b)
    up.delete(name)


ASK = {"model": "smollm", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
       "max_tokens": 16}


@pytest.mark.llama
@pytest.mark.timeout(1800)
def test_openai_models_and_chat(smollm):
    assert [m.id for m in smollm.models.list()] == ["smollm"]
    answer = smollm.chat.completions.create(**ASK)
    assert answer.choices[0].message.content.strip()
    assert answer.usage.completion_tokens > 0


@pytest.mark.llama
@pytest.mark.timeout(1800)
def test_openai_streaming_comes_as_it_is_made(smollm):
    whole = smollm.chat.completions.create(**ASK).choices[0].message.content
    times, pieces = [], []
    for event in smollm.chat.completions.create(stream=True, **ASK):
        times.append(time.monotonic())
        if event.choices and event.choices[0].delta.content:
            pieces.append(event.choices[0].delta.content)
    assert "".join(pieces) == whole
    assert len(pieces) > 3
    assert times[-1] - times[0] > 0.02, "all events came at once: something held the stream back"


@pytest.mark.llama
@pytest.mark.timeout(1800)
def test_openai_client_gone_ends_the_engines_work(up, smollm):
    stream = smollm.chat.completions.create(stream=True, **(ASK | {"max_tokens": 4000, "messages": [
        {"role": "user", "content": "Count from 1 to 1000, one number per line."}]}))
    next(iter(stream))
    stream.close()

    def idle():
        slots = requests.get(f"{up.url}/serving/default/smollm/slots", timeout=10)
        return slots.status_code == 200 and not any(s["is_processing"] for s in slots.json())

    eventually(idle, timeout=10)
