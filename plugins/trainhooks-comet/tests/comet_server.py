"""What the SDK needs of Comet's server, on the loopback: it keeps what experiments send."""

import gzip
import json
import threading
from urllib.parse import parse_qs, urlsplit

from satellite_support import Server

_ALREADY_EXISTS = 90999  # comet_ml.exceptions


class CometServer(Server):
    """``experiments``: by key, ``metrics`` as (name, step, value), ``parameters``, ``others``, ``files``, ``statuses``, ``errors``.

    An upload is answered when ``takes_files`` is set.
    """

    def __init__(self, mode="answer"):
        self.experiments, self.takes_files = {}, threading.Event()
        self.takes_files.set()
        super().__init__(mode, reply=self._comet)
        self.clientlib = self.url + "/clientlib/"

    def names_at(self, step):
        """Return the names of the metrics that it has of a step, of any experiment."""
        return {name for one in list(self.experiments.values()) for name, at, _ in list(one["metrics"]) if at == step}

    def _comet(self, method, path, body):
        url = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        multipart = body[:2] == b"--"
        data = json.loads(body) if body and not multipart else {}
        key = data.get("experimentKey") or query.get("experimentKey") or query.get("experimentId")
        status, answer = self._route(url.path, key, data, query, body)
        return status, {"Content-Type": "application/json"}, json.dumps(answer).encode()

    def _route(self, path, key, data, query, body):
        if path.endswith("/logger/add/run"):
            if key in self.experiments and not data["getOrCreateEnabled"]:
                return 400, {"sdk_error_code": _ALREADY_EXISTS, "msg": "exists"}
            self._experiment(key)
            return 200, {"runId": "run", "project_id": "project"}
        if path.endswith("/logger/get/run"):
            return 200, {"runId": "run", "project_id": "project"}
        if path.endswith("/metrics/summary"):
            last = {}
            for name, step, _ in self._experiment(key)["metrics"]:
                last[name] = max(step, last.get(name, 0))
            return 200, {"values": [{"name": name, "stepCurrent": step} for name, step in last.items()]}
        if path.endswith("/experiment/metadata"):
            return 200, {"workspaceName": "w", "projectName": "p", "experimentKey": key}
        if path.endswith("/experiment/metric"):
            for one in data["values"]:
                if one["metricName"] != "process duration":  # the SDK's own
                    self._experiment(key)["metrics"].append((one["metricName"], one["step"], one["metricValue"]))
        elif path.endswith("/experiment/parameter"):
            for one in data["values"]:
                self._experiment(key)["parameters"][one["parameterName"]] = one["parameterValue"]
        elif path.endswith("/log-other"):
            self._experiment(key)["others"][data["key"]] = data["value"]
        elif path.endswith("/update-status") and "error" in data:
            self._experiment(key)["errors"].append((data["error"], data["hasCrashed"]))
        elif path.endswith("/upload"):
            self.takes_files.wait()
            self._experiment(key)["files"].append((query.get("figName") or query.get("fileName"), query.get("step"), body))
        elif path.endswith("/status-report/update"):
            self._experiment(key)["alive"].append(data["is_alive"])
        beat = dict.fromkeys(
            ("is_alive_beat_duration_millis", "gpu_monitor_interval_millis", "cpu_monitor_interval_millis"), 10_000
        )
        return 200, {"isAlive": True, **beat, "version": "9.9.9", "msg": None, "code": 200}

    def _experiment(self, key):
        new = {"metrics": [], "parameters": {}, "others": {}, "files": [], "errors": [], "alive": []}
        return self.experiments.setdefault(key, new)
