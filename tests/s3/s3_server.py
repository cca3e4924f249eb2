"""SeaweedFS as a server of S3 for tests, and a client of it that shares no code with Unreft."""

import contextlib
import datetime
import hashlib
import hmac
import json
import pathlib
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree

KEY, SECRET, REGION = "unreft-test-key", "unreft-test-secret", "us-east-1"
SERVER = pathlib.Path(sys.executable).with_name("weed")
LOOPBACK = "127.0.0.1"
TIMEOUT_S = 20


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


def start(directory, options=()):
    """Its process, and the endpoint at which it will answer. `options`: more of its own."""
    (directory / "data").mkdir()
    identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
             "filer.port.grpc", "s3.port", "s3.port.grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    words = [SERVER, "server", f"-dir={directory}/data", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}",
             "-filer", "-s3", f"-s3.config={directory}/s3.json", "-s3.autoCreateBucket=false",
             "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.telemetry=false",
             "-master.volumeSizeLimitMB=256", "-volume.max=20", "-volume.preStopSeconds=0",
             *[f"-{name}={port}" for name, port in ports.items()], *options]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   cwd=directory)
    return process, f"http://{LOOPBACK}:{ports['s3.port']}"


class Bucket:
    def __init__(self, endpoint, name):
        self._endpoint, self._name = endpoint, name

    def make(self):
        try:
            self._ask("PUT", "")
        except OSError:
            return False
        return True

    def put(self, key, data):
        """Also over what is there."""
        self._ask("PUT", key, body=data)

    def get(self, key):
        return self._ask("GET", key)

    def keys(self, prefix=""):
        text = self._ask("GET", "", {"list-type": "2", "max-keys": "1000", "prefix": prefix})
        space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
        root = xml.etree.ElementTree.fromstring(text)
        return sorted(node.text for node in root.iter(f"{space}Key"))

    def under_way(self):
        return b"<UploadId>" in self._ask("GET", "", {"uploads": ""})

    def fetch(self, prefix, directory):
        """All below it, into a directory."""
        for key in self.keys(prefix + "/"):
            path = directory / key.removeprefix(prefix + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.get(key))

    def _ask(self, method, key, query=None, body=b""):
        host = self._endpoint.removeprefix("http://")
        path = f"/{self._name}" + (f"/{key}" if key else "")
        words = urllib.parse.urlencode(sorted((query or {}).items()), safe="~",
                                       quote_via=urllib.parse.quote)
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
        signed = ";".join(headers)
        canonical = "\n".join([method, path, words, *[f"{n}:{v}" for n, v in headers.items()], "",
                               signed, digest])
        scope = f"{now[:8]}/{REGION}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope,
                          hashlib.sha256(canonical.encode()).hexdigest()])
        secret = f"AWS4{SECRET}".encode()
        for part in (*scope.split("/"), text):
            secret = hmac.digest(secret, part.encode(), "sha256")
        headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, "
                                    f"SignedHeaders={signed}, Signature={secret.hex()}")
        url = f"{self._endpoint}{path}" + (f"?{words}" if words else "")
        request = urllib.request.Request(url, data=body if method == "PUT" else None,
                                         headers=headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return answer.read()
