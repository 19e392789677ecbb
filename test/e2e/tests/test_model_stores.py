"""Models from stores: a real S3 that checks signatures, with keys and with a role of its token service,
an emulator of Google Cloud Storage, Azurite, a server that wants a field, and what stands for a hub."""

import base64
import http.server
import json
import os
import pathlib
import subprocess
import threading

import pytest
import requests

from standin import BINARY, Up, isvc, model
from test_payload_files import IRIS, buckets, predict, secret  # noqa: F401 (a fixture)

FILES = {p.name: p.read_bytes() for p in (pathlib.Path(os.environ["E2E_REPO"]) / IRIS).iterdir() if p.is_file()}


@pytest.fixture(scope="module")
def shelf(buckets):  # noqa: F811
    """The stores with the model at models/iris, and another that only begins alike."""
    for store in buckets.at:
        for name, data in FILES.items():
            buckets.ask({"put": store, "name": f"models/iris/{name}", "data": base64.b64encode(data).decode()})
        buckets.ask({"put": store, "name": "models/iris-2/other.onnx", "data": base64.b64encode(b"other").decode()})
    return buckets


@pytest.fixture
def web():
    """Starts servers that answer each GET with (path, headers) -> (status, body)."""
    running = []

    def start(answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = answer(self.path, self.headers)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        running.append((made, thread))
        return f"http://127.0.0.1:{made.server_port}"

    yield start
    for made, thread in running:
        made.shutdown()
        thread.join(10)
        made.server_close()


def mounted(folder, **secrets):
    """Secrets as a kubelet mounts them, and the arguments that name them."""
    args = [f"--secrets={folder}"]
    for name, data in secrets.items():
        (folder / name).mkdir(parents=True)
        for key, value in data.items():
            (folder / name / key).write_text(value)
        args.append(f"--secret={name}")
    return args


def pull(to, uri, *args, **env):
    """What the init container of a pod does."""
    got = subprocess.run([BINARY, "model", "pull", "--to", str(to), *args, uri], env={"PATH": os.environ["PATH"], "HOME": str(to), **env},
                         capture_output=True, text=True, timeout=60)
    return got.returncode, got.stderr


def brought(to):
    return {p.name: p.read_bytes() for p in to.iterdir() if p.is_file()}


def test_a_secret_has_the_keys(tmp_path, shelf):
    s3 = shelf.at["s3"]
    keys = {"AWS_ACCESS_KEY_ID": s3["id"], "AWS_SECRET_ACCESS_KEY": s3["secret"], "AWS_ENDPOINT_URL": s3["url"]}
    code, said = pull(tmp_path / "to", "s3://logs/models/iris", *mounted(tmp_path / "secrets", mine=keys))
    assert code == 0 and brought(tmp_path / "to") == FILES, said


def test_a_role_of_the_service_account_gives_the_keys(tmp_path, shelf):
    """As the operator sets it for an account with eks.amazonaws.com/role-arn."""
    s3 = shelf.at["s3"]
    token = tmp_path / "token"
    token.write_text("e30.e30.x")
    # Moto lets one request through unsigned, as the token service's is, and checks those that follow.
    requests.post(s3["url"] + "/moto-api/reset-auth", data="1", headers={"Content-Type": "text/plain"}, timeout=10).raise_for_status()
    role = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ENDPOINT_URL": s3["url"], "AWS_ENDPOINT_URL_STS": s3["url"]}
    code, said = pull(tmp_path / "to", "s3://logs/models/iris", AWS_ROLE_ARN=s3["role"], **role)
    assert code == 0 and brought(tmp_path / "to") == FILES, said


def test_google_is_read_as_anybody_may(tmp_path, shelf):
    code, said = pull(tmp_path / "to", "gs://logs/models/iris", STORAGE_EMULATOR_HOST=shelf.at["gs"]["url"])
    assert code == 0 and brought(tmp_path / "to") == FILES, said


def test_azure_wants_the_accounts_key(tmp_path, shelf):
    if "abfs" not in shelf.at:
        pytest.skip("Azurite needs npm")
    azure = shelf.at["abfs"]
    key = {"AZURE_STORAGE_ACCESS_KEY": azure["key"], "AZURE_ACCOUNT_NAME": azure["account"], "AZURE_SERVICE_URL": azure["url"]}
    code, said = pull(tmp_path / "to", "abfs://logs/models/iris", *mounted(tmp_path / "secrets", mine=key))
    assert code == 0 and brought(tmp_path / "to") == FILES, said
    wrong = key | {"AZURE_STORAGE_ACCESS_KEY": base64.b64encode(b"wrong").decode()}
    code, said = pull(tmp_path / "none", "abfs://logs/models/iris", *mounted(tmp_path / "others", mine=wrong))
    assert code != 0 and "AuthorizationFailure" in said, said


def test_a_server_gets_the_fields_that_a_secret_has_for_it(tmp_path, web):
    url = web(lambda _, headers: (200, b"bytes") if headers.get("X-Key") == "v" else (401, b""))
    fields = {"https-host": "127.0.0.1", "headers": json.dumps({"X-Key": "v"})}
    code, said = pull(tmp_path / "to", f"{url}/model.onnx", *mounted(tmp_path / "secrets", mine=fields))
    assert code == 0 and brought(tmp_path / "to") == {"model.onnx": b"bytes"}, said
    code, said = pull(tmp_path / "none", f"{url}/model.onnx")
    assert code != 0, said


def hub(path, headers):
    if headers.get("Authorization") != "Bearer t":
        return 401, b""
    files = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in FILES.items()]
    path = path.split("?")[0]
    if path == "/api/models/org/iris/revision/main":
        return 200, b'{"sha": "c0"}'
    if path == "/api/models/org/iris/tree/c0":
        return 200, json.dumps(files).encode()
    name = path.removeprefix("/org/iris/resolve/c0/")
    return (200, FILES[name]) if name in FILES else (404, b"")


def test_services_read_all_of_them(tmp_path, shelf, web, monkeypatch):
    """On one machine, with the secrets that the service account default lists."""
    s3, azure = shelf.at["s3"], shelf.at.get("abfs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", shelf.at["gs"]["url"])
    secrets = [
        secret("keys", {"awsAccessKeyID": s3["id"], "awsSecretAccessKey": s3["secret"]},
               {"serving.kserve.io/s3-endpoint": s3["url"].removeprefix("http://"), "serving.kserve.io/s3-usehttps": "0"}),
        secret("hub", {"HF_TOKEN": "t", "HF_ENDPOINT": web(hub)}),
    ]
    models = {"of-s3": "s3://logs/models/iris", "of-google": "gs://logs/models/iris", "of-hub": "hf://org/iris"}
    if azure:
        secrets.append(secret("azure", {"AZURE_STORAGE_ACCESS_KEY": azure["key"], "AZURE_ACCOUNT_NAME": azure["account"], "AZURE_SERVICE_URL": azure["url"]}))
        models["of-azure"] = "abfs://logs/models/iris"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"},
               "secrets": [{"name": s["metadata"]["name"]} for s in secrets]}
    with Up(tmp_path / "up") as up:
        up.apply(*secrets, account, *[isvc(name, model("onnx", uri)) for name, uri in models.items()])
        for name in models:
            up.wait_ready(name)
            assert predict(up, name, "n")["predictions"]


def test_a_scheme_that_nobody_reads_is_told_by_a_dry_run(up):
    manifest = json.dumps(isvc("far", model("onnx", "hdfs://cluster/iris")))
    got = subprocess.run([BINARY, "kubectl", "apply", "--dry-run=server", "-f", "-"], env=up.env(), input=manifest, capture_output=True, text=True, timeout=60)
    assert got.returncode == 0 and "nobody reads models of hdfs://" in got.stderr, got
