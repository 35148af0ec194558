"""A Kubernetes API as far as `kubectl` needs it to list pods and to apply and delete workloads; objects stay in memory.

It does what the controllers of Deployments and Jobs do: a pod for each replica, the newest deleted
first, a new pod in place of one that was lost. Pods are granted as long as nodes of their kind are free.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, urlsplit

KIND = "slackwater/kind"
#: A manifest as a user would write it.
TRAIN = """
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels: {team: llm}
spec:
  backoffLimit: 1000
  template:
    spec:
      restartPolicy: OnFailure
      tolerations: [{key: nvidia.com/gpu, operator: Exists}]
      containers:
        - name: train
          image: example/train:1
          command: [torchrun, train.py, --resume]
"""
#: Kinds of objects by plural: group version, kind, field with the number of pods.
KINDS = {
    "deployments": ("apps/v1", "Deployment", "replicas"),
    "jobs": ("batch/v1", "Job", "parallelism"),
    "pods": ("v1", "Pod", ""),
}


class Cluster:
    """The objects of a cluster with ``free`` nodes by kind (None: enough)."""

    kinds = KINDS

    def __init__(self):
        self.objects: dict[tuple[str, str], dict] = {}
        self.free: dict[str, int | None] = {"spot": None, "on_demand": None}
        self.calls: list[str] = []
        self._numbers = count(1)
        self._turn = threading.RLock()

    def pods(self, workload=None):
        """Return the pods, oldest first."""
        found = [one for (plural, _), one in self.objects.items() if plural == "pods"]
        return [one for one in found if workload in (None, one["metadata"]["labels"]["slackwater/workload"])]

    def lose(self, kind):
        """Take the nodes of a kind: their pods end, and controllers ask for others, which stay pending."""
        with self._turn:
            self.free[kind] = 0
            for pod in self.pods():
                if pod["metadata"]["labels"][KIND] == kind:
                    del self.objects["pods", pod["metadata"]["name"]]
            self.reconcile()

    def reconcile(self):
        """Bring the pods of every workload to its number."""
        wanted = {}
        for (plural, name), one in self.objects.items():
            if plural != "pods":
                wanted[name] = (one["spec"][KINDS[plural][2]], one["spec"]["template"])
        for pod in self.pods():
            name = pod["metadata"]["labels"]["slackwater/workload"]
            own = self.pods(name)
            if len(own) > wanted.get(name, (0, None))[0] and pod is own[-1]:
                del self.objects["pods", pod["metadata"]["name"]]
                self.reconcile()
                return
        for name, (number, template) in wanted.items():
            while len(self.pods(name)) < number:
                self._create(name, template)

    def _create(self, workload, template):
        name = f"{workload}-{next(self._numbers)}"
        kind = template["metadata"]["labels"][KIND]
        running = [
            one
            for one in self.pods()
            if one["metadata"]["labels"][KIND] == kind and one["status"].get("startTime")
        ]
        granted = self.free[kind] is None or len(running) < self.free[kind]
        now = datetime(2026, 3, 2, tzinfo=UTC).isoformat().replace("+00:00", "Z")
        status = {"phase": "Running", "startTime": now} if granted else {"phase": "Pending"}
        self.objects["pods", name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": template["spec"],
            "status": status,
        }

    def answer(self, method, address, body):
        """Return status and object of a request."""
        with self._turn:
            self.calls.append(f"{method} {address}")
            parts = urlsplit(address)
            path, query = parts.path.strip("/").split("/"), parse_qs(parts.query)
            if path == ["api"]:
                return 200, {"kind": "APIVersions", "versions": ["v1"]}
            if path == ["apis"]:
                return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": self.groups()}
            if "namespaces" in path:
                path = path[path.index("namespaces") + 2 :]
            elif len(path) <= (2 if path[0] == "api" else 3):
                return self._resources("/".join(path[1:]))
            else:
                path = path[3:]
            plural, name = path[0], "/".join(path[1:])
            if not name:
                return 200, self._list(plural, query.get("labelSelector", [""])[0])
            if method == "PATCH":
                return self.patched(plural, name, body)
            found = self.objects.get((plural, name))
            if found is None:
                return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            if method == "DELETE":
                del self.objects[plural, name]
                self.reconcile()
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            return 200, found

    def groups(self):
        """Return the groups of the API."""
        return [group("apps"), group("batch")]

    def patched(self, plural, name, body):
        """Create or change an object by a server-side apply."""
        known = self.objects.get((plural, name), {"metadata": {"uid": f"uid-{name}"}})
        new = json.loads(body)
        new["metadata"] = {**known["metadata"], **new["metadata"]}
        self.objects[plural, name] = new
        self.reconcile()
        return 200, new

    def _list(self, plural, selector):
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        version, kind, _ = self.kinds[plural]
        items = [
            one
            for (place, _), one in self.objects.items()
            if place == plural and wanted.items() <= one["metadata"].get("labels", {}).items()
        ]
        return {"apiVersion": version, "kind": f"{kind}List", "metadata": {}, "items": items}

    def _resources(self, version):
        found = [
            {"name": plural, "singularName": kind.lower(), "namespaced": plural != "clusterqueues", "kind": kind,
             "verbs": ["get", "list", "patch", "delete", "create"]}
            for plural, (own, kind, _) in self.kinds.items()
            if own == version
        ]  # fmt: skip
        code = 200 if found else 404
        return code, {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": found,
        }


def group(name, version="v1"):
    """Return a group of the API with a version."""
    version = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [version], "preferredVersion": version}


@contextmanager
def served(cluster: Cluster) -> Iterator[str]:
    """Serve a cluster, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            code, found = cluster.answer(self.command, self.path, body)
            text = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_DELETE = do_POST = _do

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
