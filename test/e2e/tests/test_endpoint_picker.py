"""The endpoint picker before several engines, asked by a real Envoy as Envoy-based gateways ask it.

The engines are simulated (test/testkit/llmsim): what is shown is where requests go, and that they and
their answers pass unharmed.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess

import openai
import pytest
import requests

from envoy import ORIGINAL_DST, OVERRIDE_HOST, Envoy
from standin import BINARY, ENGINES, eventually, free_ports


class Engines:
    """Simulated engines; dead ones are killed by their address."""

    def __init__(self, n):
        self.addresses = [f"127.0.0.1:{p}" for p in free_ports(n)]
        self.processes = {a: subprocess.Popen([
            pathlib.Path(ENGINES, "llmsim"), "--port", a.rsplit(":", 1)[1], "--served-model-name", "sim", "--time-scale", "0.02", "--num-gpu-blocks", "16384", "--max-model-len", "200000",
        ], stdout=subprocess.DEVNULL) for a in self.addresses}
        for a in self.addresses:
            eventually(lambda a=a: requests.get(f"http://{a}/health", timeout=5).ok, 60)

    def kill(self, address):
        self.processes[address].send_signal(signal.SIGKILL)
        self.processes[address].wait(20)

    def close(self):
        for p in self.processes.values():
            p.kill()
            p.wait(20)


class Picker:
    """A process `stationmaster endpoint-picker`."""

    def __init__(self, directory, engines, *extra):
        port, admin = free_ports(2)
        self.address, self.admin = f"127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        self.log = open(pathlib.Path(directory, "picker.log"), "wb")
        self.process = subprocess.Popen([
            BINARY, "endpoint-picker", "--endpoints", f"{','.join(engines)}={self.address}", "--admin", f"127.0.0.1:{admin}",
            "--shutdown-delay", "0s", *extra], stdout=self.log, stderr=subprocess.STDOUT)
        eventually(lambda: requests.get(f"{self.admin}/readyz", timeout=5).ok, 60)

    def close(self):
        self.process.terminate()
        assert self.process.wait(40) == 0
        self.log.close()


@pytest.fixture(scope="module")
def engines():
    e = Engines(4)
    yield e
    e.close()


@pytest.fixture
def picker(tmp_path, engines):
    p = Picker(tmp_path, engines.addresses)
    yield p
    p.close()


def front(tmp_path, picker, engines, by=ORIGINAL_DST, **how):
    return Envoy(os.environ["E2E_ENVOY"], tmp_path / "envoy", picker.address, engines.addresses, by=by, **how)


def ask(envoy, text, **more):
    r = requests.post(f"{envoy.url}/v1/chat/completions", timeout=60, json={
        "model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **more})
    return r, r.headers.get("x-served-by")


@pytest.mark.parametrize("by", [ORIGINAL_DST, OVERRIDE_HOST])
@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"])
def test_answers_are_the_engines_own(tmp_path, picker, engines, by, mode):
    with front(tmp_path, picker, engines, by, mode=mode) as envoy:
        client = openai.OpenAI(base_url=f"{envoy.url}/v1", api_key="none", max_retries=0, timeout=60)
        messages = [{"role": "user", "content": "Tell me of trains. " * 20}]
        whole = client.chat.completions.create(model="sim", messages=messages, max_tokens=12)
        assert whole.usage.completion_tokens == 12 and whole.choices[0].message.content
        stream = client.chat.completions.create(model="sim", messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert said == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == 12
        assert [m.id for m in client.models.list()] == ["sim"]


def test_a_conversation_stays_and_conversations_spread(tmp_path, picker, engines):
    with front(tmp_path, picker, engines) as envoy:
        said = {n: f"Conversation {n}. " * 30 for n in range(48)}
        at = {}
        for turn in range(3):
            for n in said:
                r, by = ask(envoy, said[n])
                assert r.status_code == 200 and at.setdefault(n, by) == by, f"turn {turn} of conversation {n} went to {by}, not {at[n]}"
                said[n] += f"And turn {turn}? " * 20
        assert set(at.values()) == set(engines.addresses)
    text = requests.get(f"{picker.admin}/metrics", timeout=10).text
    assert 'code="200"' in text and "stationmaster_endpoint_picker_tokens_total" in text


def test_load_spreads(tmp_path, picker, engines):
    with front(tmp_path, picker, engines) as envoy, concurrent.futures.ThreadPoolExecutor(8) as pool:
        # One system prompt for all: affinity alone would send them all to one.
        asked = pool.map(lambda n: ask(envoy, "You are a helpful assistant. " * 40 + f"Question {n}", max_tokens=40), range(160))
        served = collections.Counter(by for r, by in asked if r.status_code == 200)
    assert sum(served.values()) == 160 and len(served) == len(engines.addresses) and max(served.values()) <= 80, served


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_long_prompts_pass_whole(tmp_path, picker, engines, mode):
    with front(tmp_path, picker, engines, OVERRIDE_HOST, mode=mode) as envoy:
        text = "".join(f"{i:07d} " for i in range(220 * 1024 // 8))
        first, at = ask(envoy, text)
        assert first.status_code == 200, first.text
        again, where = ask(envoy, text)
        assert where == at
        direct = requests.post(f"http://{at}/v1/chat/completions", timeout=60, json={
            "model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": text}]}).json()
        for r in (first, again):
            assert r.json()["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]
            assert r.json()["choices"] == direct["choices"]


def test_a_subset_is_kept_to_and_an_empty_one_refused(tmp_path, picker, engines):
    one = engines.addresses[2]
    with front(tmp_path, picker, engines, subset=[one]) as envoy:
        assert {ask(envoy, f"Number {i}")[1] for i in range(8)} == {one}
    with front(tmp_path / "empty", picker, engines, subset=["127.0.0.1:1"]) as envoy:
        r, by = ask(envoy, "Hello")
        assert r.status_code == 503 and by is None and r.json()["error"]["type"] == "server_error"


def test_refusals_have_the_apis_shape(tmp_path, picker, engines):
    with front(tmp_path, picker, engines) as envoy:
        client = openai.OpenAI(base_url=f"{envoy.url}/v1", api_key="none", max_retries=0, timeout=60)
        r = requests.post(f"{envoy.url}/v1/chat/completions", json={"messages": []}, timeout=30)
        assert r.status_code == 400 and r.json()["error"]["param"] == "model"
        assert r.headers["content-type"] == "application/json"
        with pytest.raises(openai.BadRequestError):
            client.post("/chat/completions", body={"messages": []}, cast_to=object)


def test_over_the_limit_is_429(tmp_path, engines):
    picker = Picker(tmp_path, engines.addresses[:1], "--limit", "1")
    try:
        with front(tmp_path, picker, engines) as envoy:
            slow = requests.post(f"{envoy.url}/v1/chat/completions", stream=True, timeout=60, json={
                "model": "sim", "max_tokens": 4000, "ignore_eos": True, "stream": True, "messages": [{"role": "user", "content": "long"}]})
            assert slow.status_code == 200
            r, _ = ask(envoy, "too many")
            assert r.status_code == 429 and r.json()["error"]["type"] == "rate_limit_error" and r.headers["retry-after"]
            slow.close()  # the client hangs up: its place is free
            eventually(lambda: ask(envoy, "again")[0].status_code == 200, 30)
    finally:
        picker.close()


def test_a_dead_engine_costs_nothing_with_a_fallback(tmp_path):
    engines = Engines(3)
    picker = Picker(tmp_path, engines.addresses, "--fallback", "--picking", "round-robin")
    try:
        with front(tmp_path, picker, engines, OVERRIDE_HOST) as envoy:
            assert {ask(envoy, f"Number {i}")[1] for i in range(9)} == set(engines.addresses)
            dead = engines.addresses[0]
            engines.kill(dead)
            served = collections.Counter()
            for i in range(24):
                r, by = ask(envoy, f"Number {i}")
                assert r.status_code == 200, r.text
                served[by] += 1
            assert dead not in served and len(served) == 2, served
    finally:
        picker.close()
        engines.close()


def test_a_dead_engine_is_left_out_without_a_fallback(tmp_path):
    engines = Engines(3)
    picker = Picker(tmp_path, engines.addresses, "--picking", "round-robin")
    try:
        with front(tmp_path, picker, engines) as envoy:
            engines.kill(engines.addresses[0])
            codes = [ask(envoy, f"Number {i}")[0].status_code for i in range(30)]
            # Envoy tells by its details that it couldn't connect; then some requests try again, a second apart and more.
            assert codes.count(200) >= 24 and codes[:3].count(200) >= 2, codes
    finally:
        picker.close()
        engines.close()


def test_no_picker_is_closed_and_no_engine_is_503(tmp_path, engines):
    [port] = free_ports(1)

    class Nobody:
        address = f"127.0.0.1:{port}"
    with front(tmp_path, Nobody, engines, OVERRIDE_HOST) as envoy:
        assert ask(envoy, "Hello")[0].status_code >= 500  # FailClose
    picker = Picker(tmp_path, ["127.0.0.1:1"])
    try:
        with front(tmp_path / "none", picker, engines) as envoy:
            assert ask(envoy, "Hello")[0].status_code == 503
    finally:
        picker.close()


def test_plain_text(tmp_path, engines):
    picker = Picker(tmp_path, engines.addresses, "--plaintext")
    try:
        with front(tmp_path, picker, engines, tls=False) as envoy:
            r, by = ask(envoy, "Hello")
            assert r.status_code == 200 and by in engines.addresses, json.dumps(dict(r.headers))
    finally:
        picker.close()
