"""Stores of objects for tests, run with the environment of requirements-stores.txt. Prints a line of
JSON with what there is, then answers each line of its input with one line:

  {"list": "s3"}         every object of a store's bucket "logs", base64 by name
  {"parquet": "<base64>"}  the columns' names and the rows of a file
  {"put": "s3", "name": "a/b", "data": "<base64>"}  puts an object into a store's bucket "logs"
"""

import base64
import io
import json
import os
import subprocess
import sys
import time
import urllib.request

import boto3
import pyarrow.parquet
from azure.storage.blob import BlobServiceClient
from gcp_storage_emulator.server import create_server
from moto.server import ThreadedMotoServer

# Azurite's own, which its documentation publishes.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def start_s3():
    """Moto, with a user who may write, and checks of who asks from then on."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://127.0.0.1:%d" % server.get_host_and_port()[1]
    at = {"endpoint_url": url, "region_name": "us-east-1"}
    iam = boto3.client("iam", aws_access_key_id="x", aws_secret_access_key="y", **at)
    iam.create_user(UserName="logger")
    key = iam.create_access_key(UserName="logger")["AccessKey"]
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRoleWithWebIdentity", "Principal": "*"}]}
    role = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="logger", PolicyName="all", PolicyDocument=json.dumps(allowed))
    iam.put_role_policy(RoleName="reader", PolicyName="all", PolicyDocument=json.dumps(allowed))
    mine = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    client = boto3.client("s3", **mine, **at)
    client.create_bucket(Bucket="logs")
    checked = urllib.request.Request(url + "/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"})
    urllib.request.urlopen(checked).close()

    def objects():
        for item in client.list_objects_v2(Bucket="logs").get("Contents", []):
            yield item["Key"], client.get_object(Bucket="logs", Key=item["Key"])["Body"].read()

    def put(name, data):
        client.put_object(Bucket="logs", Key=name, Body=data)

    return {"url": url, "id": key["AccessKeyId"], "secret": key["SecretAccessKey"], "role": role}, objects, put


def start_google(port):
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="logs")
    server.start()
    url = f"http://127.0.0.1:{port}"

    def objects():
        with urllib.request.urlopen(f"{url}/storage/v1/b/logs/o") as answer:
            names = [item["name"] for item in json.load(answer).get("items", [])]
        for name in names:
            quoted = urllib.request.quote(name, safe="")
            with urllib.request.urlopen(f"{url}/download/storage/v1/b/logs/o/{quoted}?alt=media") as answer:
                yield name, answer.read()

    def put(name, data):
        at = f"{url}/upload/storage/v1/b/logs/o?uploadType=media&name={urllib.request.quote(name, safe='')}"
        urllib.request.urlopen(urllib.request.Request(at, data=data, headers={"Content-Type": "application/octet-stream"})).close()

    return {"url": url}, objects, put


def open_azure(process, port):
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    client = BlobServiceClient(url, credential={"account_name": ACCOUNT, "account_key": KEY}, retry_total=0)
    end = time.monotonic() + 60
    while True:
        try:
            container = client.create_container("logs")
            break
        except Exception:
            if time.monotonic() > end or process.poll() is not None:
                raise
            time.sleep(0.2)

    def objects():
        for blob in container.list_blobs():
            yield blob.name, container.download_blob(blob.name).readall()

    def put(name, data):
        container.upload_blob(name, data)

    return {"url": url, "account": ACCOUNT, "key": KEY}, objects, put


def main():
    google_port, azure_port, azurite = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sys.stdout, out = sys.stderr, sys.stdout  # what servers print is no answer
    there, stores, puts = {}, {}, {}
    there["s3"], stores["s3"], puts["s3"] = start_s3()
    there["gs"], stores["gs"], puts["gs"] = start_google(google_port)
    azure = None
    try:
        if azurite:
            azure = subprocess.Popen([azurite, "--blobHost", "127.0.0.1", "--blobPort", str(azure_port), "--inMemoryPersistence",
                                      "--silent", "--skipApiVersionCheck", "--disableTelemetry"], stdout=subprocess.DEVNULL)
            there["abfs"], stores["abfs"], puts["abfs"] = open_azure(azure, azure_port)
        print(json.dumps(there), file=out, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            if "list" in asked:
                answer = {name: base64.b64encode(data).decode() for name, data in stores[asked["list"]]()}
            elif "put" in asked:
                puts[asked["put"]](asked["name"], base64.b64decode(asked["data"]))
                answer = {}
            else:
                table = pyarrow.parquet.read_table(io.BytesIO(base64.b64decode(asked["parquet"])))
                answer = {"columns": table.schema.names, "rows": table.to_pylist()}
            print(json.dumps(answer), file=out, flush=True)
    finally:
        if azure:
            azure.terminate()
            azure.wait(10)
    os._exit(0)  # servers' threads wait for nothing


if __name__ == "__main__":
    main()
