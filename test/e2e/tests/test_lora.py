"""LoRA adapters as TrainedModels, loaded and unloaded while their engines run.

The engine is the simulated one (test/testkit/llmsim), which has vLLM's and SGLang's calls: those
need accelerators. What it shows is the control plane's part; adapters themselves are the engines'.
"""

import os
import pathlib
import re
import signal

import openai
import pytest
import requests

from standin import engine_pids, eventually, isvc


def service(name, *args, replicas=2):
    return isvc(name, {
        "minReplicas": replicas, "maxReplicas": replicas,
        "annotations": {"stationmaster.dev/openai-root": "/"},
        "containers": [{
            "name": "kserve-container", "image": "llmsim", "command": ["llmsim"],
            "args": ["--port", "8080", "--served-model-name", name, "--max-loras", "2", "--time-scale", "0.05", *args],
            "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1},
        }]})


def adapter(name, uri, of):
    return {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel", "metadata": {"name": name},
            "spec": {"inferenceService": of, "model": {"framework": "lora", "memory": "0", "storageUri": str(uri)}}}


def folder(tmp_path, name):
    """An adapter's files, as PEFT writes them but empty."""
    path = tmp_path / name
    path.mkdir()
    (path / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "{name}"}}')
    (path / "adapter_model.safetensors").write_bytes(name.encode())
    return path


def engines(up, name):
    """Each engine's own list of its adapters, with where it has them from, by process."""
    out = {}
    for pid in engine_pids(up, f"--served-model-name {name}"):
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        assert "--port" in command, f"process {pid} is on its way"
        port = command[command.index("--port") + 1]
        data = requests.get(f"http://127.0.0.1:{port}/v1/models", timeout=10).json()["data"]
        out[pid] = {m["id"]: m["root"] for m in data if m["parent"]}
    return out


def loaded(up, name, replicas, *adapters):
    have = engines(up, name)
    assert len(have) == replicas and all(sorted(a) == sorted(adapters) for a in have.values()), have
    return have


@pytest.mark.parametrize("calls", ["vllm", "sglang"])
def test_adapters_come_and_go_on_each_replica(up, tmp_path, calls):
    name, sql, chat = f"llm-{calls}", f"sql-{calls}", f"chat-{calls}"
    extra = ["--sglang"] if calls == "sglang" else []
    up.apply(service(name, *extra), adapter(sql, folder(tmp_path, "sql"), name), adapter(chat, folder(tmp_path, "chat"), name))
    up.wait_ready(name)
    up.kubectl("wait", "--for=condition=Ready", f"trainedmodel/{sql}", f"trainedmodel/{chat}", "--timeout=60s")
    have = loaded(up, name, 2, sql, chat)
    for roots in have.values():
        path = pathlib.Path(roots[sql])
        assert up.data in path.parents, "the bytes come through the model store"
        assert (path / "adapter_model.safetensors").read_bytes() == b"sql"

    # The official client asks for an adapter as a model, on the bare address.
    client = openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=60)
    parents = {m.id: getattr(m, "parent", None) for m in client.models.list()}
    assert parents[sql] == parents[chat] == name and parents[name] is None
    assert client.models.retrieve(sql).parent == name
    for model in (name, sql, chat):
        got = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=4)
        assert got.model == model and got.choices[0].message.content
    service_list = requests.get(f"{up.url}/serving/default/{name}/v1/models", timeout=10).json()["data"]
    assert {m["id"]: m["parent"] for m in service_list} == {name: None, sql: name, chat: name}

    # A replica that dies has them again when it is back, and so has a new one.
    [victim, other] = have
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in loaded(up, name, 2, sql, chat), 60)
    up.apply(service(name, *extra, replicas=3))
    eventually(lambda: loaded(up, name, 3, sql, chat), 60)
    status = eventually(lambda: up.get(sql, kind="trainedmodel")["status"], 10)
    assert status["url"].endswith("/v1/chat/completions"), status

    # Other bytes take the place of the old, and an adapter that is deleted goes.
    up.apply(adapter(sql, folder(tmp_path, "sql-2"), name))
    up.kubectl("delete", "trainedmodel", chat)
    after = eventually(lambda: (have := loaded(up, name, 3, sql)) and all(
        (pathlib.Path(a[sql]) / "adapter_model.safetensors").read_bytes() == b"sql-2" for a in have.values()) and have, 60)
    assert other in after, "no engine was started anew for it"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=chat, messages=[{"role": "user", "content": "hello"}])
    up.delete(name)


def test_adapters_that_an_engine_brings_are_found(up):
    up.apply(service("llm-own", "--lora-modules", "poet=/models/poet", replicas=1))
    up.wait_ready("llm-own")
    client = openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=60)
    eventually(lambda: "poet" in {m.id for m in client.models.list()}, 30)
    assert client.models.retrieve("poet").parent == "llm-own"
    stream = client.chat.completions.create(model="poet", messages=[{"role": "user", "content": "hello"}], max_tokens=4, stream=True)
    assert all(chunk.model == "poet" for chunk in stream)
    up.delete("llm-own")


def test_what_keeps_an_adapter_from_being_loaded_is_told(up, tmp_path):
    up.apply(service("llm-full", "--max-cpu-loras", "1", "--lora-modules", "own=/models/own", replicas=1),
             adapter("too-many", folder(tmp_path, "a"), "llm-full"), adapter("nowhere", tmp_path / "nowhere", "llm-full"))
    up.wait_ready("llm-full")

    def message(name):
        conditions = {c["type"]: c for c in up.get(name, kind="trainedmodel")["status"]["conditions"]}
        assert conditions["Ready"]["status"] == "False", conditions
        return f"{conditions['Ready']['reason']}: {conditions['Ready']['message']}"

    eventually(lambda: re.match(r"AdapterNotLoaded: 0 of 1 replicas have the adapter: the engine answers 400: No room", message("too-many")), 30)
    eventually(lambda: re.match(r"AdapterNotLoaded: 0 of 1 replicas have the adapter: fetch it: .*nowhere", message("nowhere")), 30)
    up.delete("llm-full")
