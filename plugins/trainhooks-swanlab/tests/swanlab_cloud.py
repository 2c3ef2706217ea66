"""What of SwanLab's web interface its client 0.10 needs, as a ``reply`` of ``satellite_support.Server``."""

import json
import re
import threading


class Cloud:
    """Keeps what it gets; ``scalars`` are (key, step, value) in order."""

    def __init__(self):
        self.experiments, self.scalars, self.media, self.states, self.profiles, self.objects = {}, [], [], [], [], {}
        self.unknown, self._lock, self.url, self.arrived = [], threading.Lock(), None, threading.Event()

    def __call__(self, method, path, body):
        path = path.partition("?")[0]
        with self._lock:
            for pattern, answer in _ANSWERS.items():
                wanted, _, expression = pattern.partition(" ")
                match = re.fullmatch(expression, path)
                if method == wanted and match:
                    given = body if wanted == "PUT" and path.startswith("/object") else json.loads(body or b"null")
                    status, data = answer(self, given, *match.groups())
                    return status, {"Content-Type": "application/json"}, json.dumps(data).encode()
            self.unknown.append((method, path))
            return 404, {"Content-Type": "application/json"}, b'{"code": "NOT_FOUND", "message": "not there"}'

    def names_at(self, step):
        """Return the keys of the scalars that it has of a step."""
        return {key for key, at, _ in list(self.scalars) if at == step}

    def root(self, _):
        return 200, {}

    def login(self, _):
        return 200, {"sid": "s", "expiredAt": "2099-01-01T00:00:00.000Z", "userInfo": {"username": "me", "name": "me"}}

    def project(self, _, name):
        group = {"username": "me"}
        return 200, {
            "cuid": "p1",
            "name": name,
            "path": f"/@me/{name}",
            "group": group,
            "_count": {"experiments": 0},
            "version": 1,
        }

    def experiment(self, given, _):
        known = given["cuid"] in self.experiments
        self.experiments.setdefault(given["cuid"], given)
        found = {"cuid": given["cuid"], "slug": given["cuid"], "name": given["name"], "createdAt": "2026-01-01T00:00:00.000Z"}
        return 200 if known else 201, found

    def summary(self, _, __):
        steps, media = {}, {}
        for key, step, _value in self.scalars:
            steps[key] = max(step, steps.get(key, -1))
        for key, step in self.media:
            media[key] = max(step, media.get(key, -1))
        listed = [[{"key": key, "step": step} for key, step in found.items()] for found in (steps, media)]
        return 200, {"log": [], "scalar": listed[0], "media": listed[1]}

    def metrics(self, given):
        for one in given["metrics"]:
            if given["type"] == "scalar":
                self.scalars.append((one["key"], one["index"], one["data"]))
                self.arrived.set()
            elif given["type"] == "media":
                self.media.append((one["key"], one["index"]))
        return 200, {}

    def profile(self, given, _):
        self.profiles.append(given)
        return 200, {}

    def state(self, given, _):
        self.states.append(given["state"])
        return 200, {}

    def presigned(self, given):
        return 200, {"urls": [f"{self.url}/object/{path}" for path in given["paths"]]}

    def prepare(self, given, _):
        return 200, {"urls": [f"{self.url}/object/{file['path']}" for file in given["files"]]}

    def object(self, given, path):
        self.objects[path] = given
        return 200, {}

    def nothing(self, *_):
        return 200, {}


_ANSWERS = {
    "GET /(?:api)?": Cloud.root,
    "POST /api/login/api_key": Cloud.login,
    "GET /api/project/me/([^/]+)": Cloud.project,
    "POST /api/project/me/([^/]+)/experiment": Cloud.experiment,
    "GET /api/house/metrics/summaries/p1/([^/]+)": Cloud.summary,
    "POST /api/house/metrics": Cloud.metrics,
    "PUT /api/project/me/[^/]+/runs/([^/]+)/profile": Cloud.profile,
    "PUT /api/project/me/[^/]+/runs/([^/]+)/state": Cloud.state,
    "POST /api/resources/presigned/put": Cloud.presigned,
    "POST /api/experiment/([^/]+)/files/prepare": Cloud.prepare,
    "POST /api/experiment/([^/]+)/files/complete": Cloud.nothing,
    "PUT /object/(.*)": Cloud.object,
    "POST /api/projects/me/[^/]+/series": Cloud.nothing,
    "POST /api/house/experiments/[^/]+/heartbeat": Cloud.nothing,
}
