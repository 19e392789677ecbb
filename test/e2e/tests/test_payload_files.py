"""Loggers that write to buckets: a real S3 that checks signatures, an emulator of Google Cloud
Storage, Azurite; each with the credentials of a namespace's secrets."""

import base64
import csv
import http.server
import io
import json
import os
import pathlib
import re
import subprocess
import threading

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from standin import Up, eventually, free_ports, isvc, model

IRIS = "examples/iris/model"
COLUMNS = ["url", "bytes", "contentType", "reqType", "id", "sourceUri", "inferenceService", "namespace", "component",
           "endpoint", "metadata", "annotations", "certName", "tlsSkipVerify"]


class Buckets:
    """The stores, in a process of their own."""

    def __init__(self):
        google, azure = free_ports(2)
        self.process = subprocess.Popen(
            [os.environ["E2E_STORES_PYTHON"], str(pathlib.Path(__file__).with_name("buckets.py")), str(google), str(azure),
             os.environ.get("E2E_AZURITE", "")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.at = json.loads(self.process.stdout.readline())

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def under(self, store, folder, n):
        """The objects of a folder by their names in it, once there are n."""
        def found():
            every = self.ask({"list": store})
            mine = {name.removeprefix(folder): base64.b64decode(data) for name, data in every.items() if name.startswith(folder)}
            return mine if len(mine) >= n else None
        return eventually(found, 60)


@pytest.fixture(scope="module")
def buckets():
    stores = Buckets()
    yield stores
    stores.process.stdin.close()
    stores.process.wait(30)


@pytest.fixture
def server():
    """Starts servers that answer each POST with (body) -> (headers, answer)."""
    running = []

    def start(answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                headers, body = answer(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        running.append((made, thread))
        return f"http://127.0.0.1:{made.server_port}/"

    yield start
    for made, thread in running:
        made.shutdown()
        thread.join(10)
        made.server_close()


def secret(name, data, annotations=None):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
            "stringData": data}


def logged(name, logger, **storage):
    """A service with a logger to files, whose storage has what KServe wants of one."""
    storage = {"path": "own", "key": "absent", "parameters": {}} | storage
    return isvc(name, model("onnx", IRIS) | {"logger": {"mode": "all", "storage": storage, **logger}})


def serve(up, service, *others):
    name = service["metadata"]["name"]
    up.apply(*others, service)
    up.wait_ready(name)
    fields = up.get(name)["status"]["conditions"]
    assert not [c for c in fields if c["type"] == "FieldsInEffect" and c["status"] == "False"], fields


def predict(up, name, ident):
    answer = requests.post(f"{up.url}/v1/models/{name}:predict", json={"instances": [[5.1, 3.5, 1.4, 0.2]]},
                           headers={"Ce-Id": ident}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def counted(up, name, result):
    text = requests.get(f"http://127.0.0.1:{up.admin_port}/metrics", timeout=10).text
    found = re.search(rf'stationmaster_payload_events_total{{[^}}]*result="{result}",service="{name}"}} (\S+)', text)
    return float(found.group(1)) if found else 0


def s3_entry(buckets, **more):
    s3 = buckets.at["s3"]
    return json.dumps({"type": "s3", "access_key_id": s3["id"], "secret_access_key": s3["secret"], "endpoint_url": s3["url"],
                       "region": "us-east-1", "anonymous": "False"} | more)


def test_each_entry_is_an_object_of_s3(up, buckets):
    """With the credentials of an entry of storage-config, wrong ones at first."""
    serve(up, logged("files-json", {"url": "s3://logs/all", "metadataHeaders": ["Ce-Id"]}, key="logs"),
          secret("storage-config", {"logs": s3_entry(buckets, secret_access_key="wrong")}))
    predict(up, "files-json", "lost")
    eventually(lambda: counted(up, "files-json", "failed") == 2, 60)
    up.apply(secret("storage-config", {"logs": s3_entry(buckets)}))
    answer = predict(up, "files-json", "a/b c")
    files = buckets.under("s3", "all/default/files-json/predictor/own/", 2)
    assert sorted(files) == ["a_b_c-request.json", "a_b_c-response.json"]
    entry = json.loads(files["a_b_c-response.json"])
    assert json.loads(base64.b64decode(entry["bytes"])) == answer
    assert entry["reqType"] == "org.kubeflow.serving.inference.response" and entry["contentType"] == "application/json"
    assert entry["id"] == "a/b c" and entry["metadata"] == {"Ce-Id": ["a/b c"]} and entry["url"]["Host"] == "logs"
    assert counted(up, "files-json", "delivered") == 2
    up.delete("files-json")


def test_entries_go_together_as_csv(up, buckets):
    """With the credentials of a service account's secret, as KServe documents them."""
    s3 = buckets.at["s3"]
    own = secret("agent-logger-secret", {"awsAccessKeyID": s3["id"], "awsSecretAccessKey": s3["secret"]}, {
        "serving.kserve.io/s3-endpoint": s3["url"].removeprefix("http://"), "serving.kserve.io/s3-usehttps": "0",
        "serving.kserve.io/s3-region": "us-east-1"})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "logger-sa", "namespace": "default"},
               "secrets": [{"name": "agent-logger-secret"}]}
    serve(up, logged("files-csv", {"url": "s3://logs", "batchSize": 2, "batchInterval": "1s"}, parameters={"format": "csv"}), own, account)
    for i in range(3):
        predict(up, "files-csv", f"n{i}")
    files = buckets.under("s3", "default/files-csv/predictor/own/", 4)
    ids = {}
    for name, data in files.items():
        rows = list(csv.reader(io.StringIO(data.decode())))
        assert rows[0] == COLUMNS
        ids[name] = [row[4] for row in rows[1:]]
        assert {row[3].rsplit(".", 1)[1] for row in rows[1:]} == {name.rsplit("-", 1)[1].removesuffix(".csv")}
    assert sorted(i for name in ids for i in ids[name]) == ["n0", "n0", "n1", "n1", "n2", "n2"], ids
    assert sorted(map(len, ids.values())) == [1, 1, 2, 2], ids
    up.delete("files-csv")


def test_entries_go_to_google_as_parquet(up, buckets, server):
    """With a service account's key of Google's, whose tokens the store's own server gives."""
    asked = []

    def token(body):
        asked.append(body)
        return {"Content-Type": "application/json"}, b'{"access_token":"t","token_type":"Bearer","expires_in":3600}'

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    robot = {"type": "service_account", "client_email": "robot@example.com", "private_key": pem, "private_key_id": "1",
             "token_uri": server(token)}
    service = logged("files-parquet", {"url": "gs://logs/all", "batchSize": 2},
                     parameters={"format": "parquet", "endpoint_url": buckets.at["gs"]["url"]})
    service["metadata"]["annotations"] = {"serving.kserve.io/storageSecretName": "google"}
    serve(up, service, secret("google", {"gcloud-application-credentials.json": json.dumps(robot)}))
    answers = [predict(up, "files-parquet", f"n{i}") for i in range(2)]
    files = buckets.under("gs", "all/default/files-parquet/predictor/own/", 2)
    [name] = [name for name in files if name.endswith("-response.parquet")]
    table = buckets.ask({"parquet": base64.b64encode(files[name]).decode()})
    assert table["columns"] == COLUMNS
    by_id = {row["id"]: row for row in table["rows"]}
    assert [json.loads(base64.b64decode(by_id[f"n{i}"]["bytes"])) for i in range(2)] == answers
    assert by_id["n0"]["tlsSkipVerify"] is False and by_id["n0"]["inferenceService"] == "files-parquet"
    assert len(asked) == 1 and b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer" in asked[0]
    up.delete("files-parquet")


def test_what_a_marshaller_makes_goes_to_azure(up, buckets, server):
    if "abfs" not in buckets.at:
        pytest.skip("Azurite needs npm")

    def marshal(body):
        return {"Content-Type": "text/plain", "X-Log-Marshal-Extension": "txt"}, " ".join(e["id"] for e in json.loads(body)).encode()

    azure = buckets.at["abfs"]
    service = logged("files-azure", {"url": "abfs://logs/a b", "mode": "request", "batchSize": 2, "marshallerUrl": server(marshal)})
    service["spec"]["predictor"]["annotations"] = {"serving.kserve.io/storageSecretName": "azure"}
    serve(up, service, secret("azure", {
        "AZURE_STORAGE_ACCESS_KEY": azure["key"], "AZURE_ACCOUNT_NAME": azure["account"], "AZURE_SERVICE_URL": azure["url"]}))
    for i in range(2):
        predict(up, "files-azure", f"n{i}")
    files = buckets.under("abfs", "a b/default/files-azure/predictor/own/", 1)
    [(name, data)] = files.items()
    assert name.endswith("-request.txt") and sorted(data.decode().split()) == ["n0", "n1"], files
    up.delete("files-azure")


def test_what_waits_is_stored_at_the_end(tmp_path, buckets, monkeypatch):
    """With the credentials of the environment."""
    s3 = buckets.at["s3"]
    for name, value in {"AWS_ACCESS_KEY_ID": s3["id"], "AWS_SECRET_ACCESS_KEY": s3["secret"], "AWS_ENDPOINT_URL": s3["url"],
                        "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    with Up(tmp_path / "up") as up:
        serve(up, logged("files-late", {"url": "s3://logs", "batchSize": 100}))
        for i in range(3):
            predict(up, "files-late", f"n{i}")
        assert up.stop() == 0
    files = buckets.under("s3", "default/files-late/predictor/own/", 2)
    assert {name.rsplit("-", 1)[1]: len(json.loads(data)) for name, data in files.items()} == {"request.json": 3, "response.json": 3}
