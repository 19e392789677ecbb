"""The OpenAI API on the bare address, where the model's name leads to its service: the official SDK
over llama.cpp."""

import json
import re

import openai
import pytest
import requests

from standin import eventually

pytestmark = [pytest.mark.llama, pytest.mark.timeout(1800)]

ASK = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 16}


@pytest.fixture(params=["/openai/v1", "/v1"])
def client(request, up, smollm):
    return openai.OpenAI(base_url=up.url + request.param, api_key="none", max_retries=0, timeout=120)


def tokens(up):
    """The tokens counted so far, by kind."""
    text = requests.get(f"http://127.0.0.1:{up.admin_port}/metrics", timeout=10).text
    found = re.findall(r'^stationmaster_tokens_total\{kind="(\w+)",[^}]*service="smollm"[^}]*\} (\S+)$', text, re.M)
    return {"prompt": 0.0, "completion": 0.0} | {kind: float(n) for kind, n in found}


def test_models_are_listed(client):
    listed = {m.id: m for m in client.models.list()}
    assert listed["smollm"].object == "model"
    assert listed["smollm"].owned_by == "default"
    assert listed["smollm"].revision == "smollm-predictor-00001"
    assert listed["smollm"].digest.startswith("sha256:")
    assert client.models.retrieve("smollm").id == "smollm"


def test_the_context_is_as_long_as_the_engine_says(up, client):
    """Nothing in the command line tells it: the engine is asked, once it is ready."""
    props = requests.get(f"{up.url}/serving/default/smollm/props", timeout=10).json()
    want = props["default_generation_settings"]["n_ctx"]
    assert want > 0
    eventually(lambda: getattr(client.models.retrieve("smollm"), "context_length", None) == want, timeout=60)
    assert client.models.retrieve("smollm").revisions[0]["context_length"] == want


@pytest.mark.parametrize("name", ["smollm", "default/smollm", "smollm@smollm-predictor-00001"])
def test_chat(client, name):
    raw = client.chat.completions.with_raw_response.create(model=name, **ASK)
    answer = raw.parse()
    assert answer.choices[0].message.content.strip()
    assert answer.usage.completion_tokens > 0
    assert answer.model == name
    assert raw.headers["x-stationmaster-revision"] == "smollm-predictor-00001"
    ours, _, engines = answer.system_fingerprint.partition("/")
    assert re.fullmatch(r"smollm-predictor-00001@[0-9a-f]{12}", ours)
    assert raw.headers["x-model-digest"].removeprefix("sha256:").startswith(ours.split("@")[1])
    assert engines, "llama.cpp has a fingerprint of its own"
    events = list(client.chat.completions.create(model=name, stream=True, **ASK))
    assert {e.system_fingerprint for e in events} == {answer.system_fingerprint}
    assert {e.model for e in events} == {name}


def test_completions(client):
    answer = client.completions.create(model="smollm", prompt="1, 2, 3,", max_tokens=8, temperature=0)
    assert answer.choices[0].text


def test_streaming_tells_usage_only_to_who_asks(up, client):
    whole = client.chat.completions.create(model="smollm", **ASK)
    before = tokens(up)
    events = list(client.chat.completions.create(model="smollm", stream=True, **ASK))
    assert "".join(e.choices[0].delta.content or "" for e in events) == whole.choices[0].message.content
    assert all(e.choices and not e.usage for e in events)

    def counted():
        after = tokens(up)
        return after if after["completion"] > before["completion"] else None

    after = eventually(counted, timeout=10)
    assert after["completion"] - before["completion"] == whole.usage.completion_tokens
    assert after["prompt"] - before["prompt"] == whole.usage.prompt_tokens

    events = list(client.chat.completions.create(model="smollm", stream=True, stream_options={"include_usage": True}, **ASK))
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_large_prompt_with_the_model_last(up, smollm):
    """A body of 3 MB reaches the engine, which refuses the prompt in its own words."""
    body = json.dumps({"prompt": "word " * 600_000, "max_tokens": 1, "model": "smollm"})
    got = requests.post(f"{up.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}, timeout=120)
    assert got.status_code == 400, got.text
    assert got.json()["error"]["type"] == "exceed_context_size_error"


def test_wrong_models_are_not_found(client):
    for name in ("none", "elsewhere/smollm", "smollm@smollm-predictor-00009"):
        with pytest.raises(openai.NotFoundError) as e:
            client.chat.completions.create(model=name, **ASK)
        assert e.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_requests_without_a_model_are_bad(up, smollm):
    client = openai.OpenAI(base_url=up.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as e:
        client.post("/chat/completions", body={"messages": []}, cast_to=object)
    assert e.value.param == "model"
