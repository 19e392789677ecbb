"""Scaling on metrics with a real Prometheus, and on the engines' own pages without one."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import threading

import numpy as np
import openai
import pytest
import requests

from standin import REPO, eventually, free_ports, iris_manifest, isvc, model, tensor

TOOLS = pathlib.Path(os.environ["E2E_PROMETHEUS"])
OBSERVABILITY = REPO / "config/observability"
ROW = np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)


class Prometheus:
    """A Prometheus that scrapes the admin port of `up` every second, with the shipped rules."""

    def __init__(self, directory, up):
        self.dir, self.up = pathlib.Path(directory), up
        [self.port] = free_ports(1)
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.dir.mkdir(parents=True, exist_ok=True)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
            "rule_files": [str(OBSERVABILITY / "rules.yaml")],
            "scrape_configs": [
                {"job_name": "stationmaster", "static_configs": [{"targets": [f"127.0.0.1:{self.up.admin_port}"]}]},
                # Engines' own pages, through the same port.
                {"job_name": "engines", "http_sd_configs": [
                    {"url": f"http://127.0.0.1:{self.up.admin_port}/engines/targets", "refresh_interval": "2s"}]},
            ],
        }
        (self.dir / "prometheus.yml").write_text(json.dumps(config))
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(
                [TOOLS / "prometheus", f"--config.file={self.dir / 'prometheus.yml'}", f"--storage.tsdb.path={self.dir / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        eventually(lambda: requests.get(f"{self.url}/-/ready", timeout=5).ok, 60)
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait(30)

    def query(self, expression):
        got = requests.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=10).json()
        assert got["status"] == "success", f"{expression}: {got}"
        return got["data"]["result"]


class Steady:
    """Asks a service so many times a second until it is ended; every answer must be right."""

    def __init__(self, up, name, per_second):
        self.up, self.name, self.pause = up, name, 1 / per_second
        self.input = requests.get(f"{up.url}/serving/default/{name}/v2/models/{name}", timeout=30).json()["inputs"][0]["name"]
        self.end = threading.Event()
        self.bad, self.good = [], 0

    def ask(self):
        try:
            got = self.up.infer(self.name, [tensor(self.input, ROW)])
            why = None if got.status_code == 200 else f"{got.status_code} {got.text[:200]}"
        except requests.RequestException as e:
            why = repr(e)
        if why:
            self.bad.append(why)
        else:
            self.good += 1

    def run(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            while not self.end.wait(self.pause):
                pool.submit(self.ask)

    def __enter__(self):
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.end.set()
        self.thread.join(60)
        assert not self.bad and self.good, f"{self.good} right, wrong: {self.bad[:5]}"


def scaling(name, metric):
    """The iris service with one to three replicas, quick to go down."""
    manifest = iris_manifest(name)
    manifest["spec"]["predictor"] |= {
        "minReplicas": 1, "maxReplicas": 3,
        "autoScaling": {"metrics": [metric], "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}},
    }
    return manifest


def replicas(up, name):
    status = up.get(f"{name}-predictor-00001", kind="revision").get("status", {})
    return status.get("readyReplicas", 0)


def condition(up, name, kind):
    return next((c for c in up.get(name)["status"]["conditions"] if c["type"] == kind), {"status": None})


@pytest.fixture(scope="module")
def prometheus(up, tmp_path_factory):
    with Prometheus(tmp_path_factory.mktemp("prometheus"), up) as running:
        yield running


def test_out_and_back_on_a_prometheus_query(up, tmp_path):
    with Prometheus(tmp_path, up) as prometheus:
        up.apply(scaling("queried", {"type": "External", "external": {
            "metric": {"backend": "prometheus", "serverAddress": prometheus.url,
                       "query": 'sum(rate(stationmaster_gateway_requests_total{service="queried"}[10s])) or vector(0)'},
            "target": {"type": "Value", "value": "8"}}}))
        up.wait_ready("queried")
        assert condition(up, "queried", "FieldsInEffect")["status"] == "True"
        assert replicas(up, "queried") == 1
        with Steady(up, "queried", 30):
            eventually(lambda: replicas(up, "queried") == 3, 120, poll=1)
        eventually(lambda: replicas(up, "queried") == 1, 120, poll=1)
        eventually(lambda: condition(up, "queried", "ScalingActive")["status"] == "True", 30)
        # What Prometheus has of the scaling is what happened.
        [series] = prometheus.query('max_over_time(stationmaster_scaling_replicas{service="queried",state="ready"}[10m])')
        assert series["value"][1] == "3"
    # Without Prometheus nothing is known, which isn't zero, and it is said.
    eventually(lambda: condition(up, "queried", "ScalingActive")["status"] == "False", 60)
    missing = condition(up, "queried", "ScalingActive")
    assert missing["reason"] == "MetricsMissing" and "connection refused" in missing["message"], missing
    events = json.loads(up.kubectl("get", "events", "-o", "json"))["items"]
    assert any(e["reason"] == "MetricsMissing" and e["involvedObject"]["name"] == "queried" for e in events)
    up.wait_ready("queried", timeout=10)
    up.delete("queried")


def test_out_and_back_on_the_engines_own_metric(up):
    up.apply(scaling("told", {"type": "PodMetric", "podmetric": {
        "metric": {"backend": "opentelemetry", "query": 'stationmaster_runtime_requests_total{code="200"}', "operationOverTime": "rate"},
        "target": {"type": "Value", "value": "8"}}}))
    up.wait_ready("told")
    with Steady(up, "told", 30):
        eventually(lambda: replicas(up, "told") == 3, 180, poll=1)
    eventually(lambda: replicas(up, "told") == 1, 180, poll=1)
    up.delete("told")


def test_out_on_the_processor(up):
    manifest = scaling("busy", {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1m"}}})
    manifest["metadata"]["annotations"] = {"serving.kserve.io/autoscalerClass": "hpa"}
    up.apply(manifest)
    up.wait_ready("busy")
    with Steady(up, "busy", 30):
        eventually(lambda: replicas(up, "busy") > 1, 180, poll=1)
    up.delete("busy")


def test_shipped_rules_are_accepted():
    got = subprocess.run([TOOLS / "promtool", "check", "rules", OBSERVABILITY / "rules.yaml"], capture_output=True, text=True, timeout=60)
    assert got.returncode == 0 and "SUCCESS" in got.stdout, got.stdout + got.stderr
    got = subprocess.run([TOOLS / "promtool", "test", "rules", OBSERVABILITY / "rules_test.yaml"], capture_output=True, text=True, timeout=60)
    assert got.returncode == 0, got.stdout + got.stderr


def expressions(panels):
    for panel in panels:
        yield from expressions(panel.get("panels", []))
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


class Writing:
    """So many completions under way at a time, of an LLM, until it is ended."""

    def __init__(self, client, model, many):
        self.client, self.model, self.many = client, model, many
        self.end, self.bad, self.good = threading.Event(), [], 0

    def run(self):
        while not self.end.is_set():
            try:
                self.client.completions.create(model=self.model, prompt="1, 2, 3,", max_tokens=40, temperature=0,
                                               extra_body={"ignore_eos": True})
                self.good += 1
            except openai.OpenAIError as e:
                self.bad.append(repr(e))
                return

    def __enter__(self):
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(self.many)]
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.end.set()
        for t in self.threads:
            t.join(300)
        assert not self.bad and self.good, f"{self.good} written, wrong: {self.bad[:5]}"


@pytest.mark.llama
@pytest.mark.timeout(1800)
def test_real_engines_tell_under_one_set_of_names(up, smollm, iris, prometheus, tmp_path):
    """llama.cpp, MLServer and our own server; Prometheus scrapes what we tell of them, and their own pages."""
    train = pathlib.Path(__file__).with_name("train.py")
    subprocess.run([os.environ["E2E_MLSERVER_PYTHON"], str(train), "sklearn", str(tmp_path)], check=True, timeout=300)
    up.apply(isvc("told-ml", model("sklearn", f"file://{tmp_path}/model", protocolVersion="v2")))
    up.wait_ready("told-ml", timeout=180)
    assert up.infer("told-ml", [tensor("predict", ROW)]).status_code == 200
    client = openai.OpenAI(base_url=up.url + "/v1", api_key="none", max_retries=0, timeout=300)

    def one(expression):
        found = prometheus.query(expression)
        return float(found[0]["value"][1]) if len(found) == 1 else None

    with Writing(client, "smollm", 3):
        eventually(lambda: one('stationmaster_engine_requests_running{service="smollm",engine="llamacpp"} > 0'), 180)
        eventually(lambda: one('rate(stationmaster_engine_generated_tokens_total{service="smollm"}[30s]) > 0'), 180)
        eventually(lambda: one('stationmaster_engine_batch_size{service="smollm"} >= 1'), 180)
        # The same prompt again and again is in the cache.
        eventually(lambda: one('stationmaster_engine_prefix_cache_hits_total{service="smollm"} > 0'), 180)
        assert one('stationmaster_engine_prefix_cache_hits_total{service="smollm"} <= stationmaster_engine_prefix_cache_queries_total') is not None
        for service, engine in (("smollm", "llamacpp"), ("told-ml", "mlserver"), ("iris", "stationmaster")):
            assert eventually(lambda: one(f'stationmaster_engine_up{{service="{service}",engine="{engine}"}}'), 60) == 1
            assert one(f'count(stationmaster_engine_requests_running{{service="{service}"}})') == 1
        # The engine's own, beside.
        eventually(lambda: one('llamacpp:tokens_predicted_total{job="engines",service="smollm",revision="smollm-predictor-00001"} > 0'), 180)
        eventually(lambda: one('count(model_infer_request_success_total{job="engines",service="told-ml"})'), 180)
        dashboard = json.loads((OBSERVABILITY / "dashboard.json").read_text())
        for title, expression in expressions(dashboard["panels"]):
            if title in ("Requests in engines", "Prefix cache hits", "Tokens a second in engines", "Requests computed together"):
                expression = expression.replace("$__rate_interval", "30s").replace("$namespace", ".*").replace("$service", "smollm")
                eventually(lambda: prometheus.query(expression), 180)
    up.delete("told-ml")


@pytest.mark.llama
@pytest.mark.timeout(1800)
def test_one_rule_scales_an_llm(up, smollm):
    """On a name that holds for all engines, read from llama.cpp's page."""
    manifest = up.get("smollm")
    predictor = manifest["spec"]["predictor"]["model"]
    up.apply(isvc("scaled", {
        "model": {"modelFormat": predictor["modelFormat"], "storageUri": predictor["storageUri"]}, "minReplicas": 1, "maxReplicas": 2,
        "autoScaling": {
            "metrics": [{"type": "PodMetric", "podmetric": {
                "metric": {"query": "stationmaster_engine_requests_running"}, "target": {"type": "AverageValue", "averageValue": "1"}}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}))
    up.wait_ready("scaled", timeout=240)
    client = openai.OpenAI(base_url=up.url + "/v1", api_key="none", max_retries=0, timeout=300)
    with Writing(client, "scaled", 4):
        eventually(lambda: replicas(up, "scaled") == 2, 180, poll=1)
    eventually(lambda: replicas(up, "scaled") == 1, 180, poll=1)
    assert condition(up, "scaled", "ScalingActive")["status"] == "True"
    up.delete("scaled")


def test_each_expression_of_the_dashboard_and_the_rules_is_answered(up, iris, prometheus):
    with Steady(up, "iris", 20):
        eventually(lambda: prometheus.query('rate(stationmaster_gateway_requests_total{service="iris"}[10s]) > 0'), 60)
    dashboard = json.loads((OBSERVABILITY / "dashboard.json").read_text())
    found = {}
    for title, expression in expressions(dashboard["panels"]):
        expression = expression.replace("$__rate_interval", "30s").replace("$namespace", ".*").replace("$service", ".*")
        assert "$" not in expression, expression
        found[title] = found.get(title, 0) + len(prometheus.query(expression))
    assert found["Requests a second"] and found["Time to answer"] and found["Requests under way"], found
    groups = requests.get(f"{prometheus.url}/api/v1/rules", timeout=10).json()["data"]["groups"]
    rules = [r for g in groups for r in g["rules"]]
    eventually(lambda: all(r["health"] == "ok" for g in requests.get(f"{prometheus.url}/api/v1/rules", timeout=10).json()["data"]["groups"] for r in g["rules"]), 60)
    assert len(rules) >= 5
