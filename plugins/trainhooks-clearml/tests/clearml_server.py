"""What the SDK needs of ClearML's server, on the loopback: it keeps what tasks send, each event once, as the real one does."""

import base64
import json
import time

from satellite_support import Server


def _token():
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = int(time.time())
    claims = {"exp": now + 86_400, "iat": now, "api_version": "2.30", "server_version": "1.16", "feature_set": "basic"}
    return (
        f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}.{base64.urlsafe_b64encode(b'signature').rstrip(b'=').decode()}"
    )


class ClearMLServer(Server):
    """``tasks``: by id, as the SDK sent them, with ``status``; ``events``: by (task, type, metric, variant, iteration, key); ``files``."""

    def __init__(self, mode="answer"):
        self.tasks, self.events, self.files, self.calls = {}, {}, {}, []
        super().__init__(mode, reply=self._clearml)

    @property
    def env(self):
        """What makes the SDK use this server."""
        hosts = {f"CLEARML_{name}_HOST": self.url for name in ("API", "WEB", "FILES")}
        return {**hosts, "CLEARML_API_ACCESS_KEY": "key", "CLEARML_API_SECRET_KEY": "secret"}

    def _clearml(self, method, path, body):
        name = path.split("?")[0].strip("/")
        if name.startswith("v2."):
            name = name.partition("/")[2]
        self.calls.append(name)
        if "." not in name.split("/")[0]:
            self.files[name] = body
            return 200, {"Content-Type": "text/plain"}, b""
        lines = [json.loads(line) for line in body.splitlines()] if name == "events.add_batch" else []
        data = self._answer(name, lines or (json.loads(body) if body else {}))
        meta = {"id": "1", "trx": "1", "endpoint": {"name": name, "requested_version": "2.30", "actual_version": "2.30"}}
        answer = {"meta": {**meta, "result_code": 200, "result_subcode": 0, "result_msg": "OK"}, "data": data}
        return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()

    def _answer(self, name, data):
        service, _, action = name.partition(".")
        if name == "auth.login":
            return {"token": _token()}
        if name == "projects.get_all":
            return {"projects": [{"id": "project", "name": "trainhooks"}]}
        if name == "projects.get_by_id":
            return {"project": {"id": "project", "name": "trainhooks"}}
        if name == "tasks.create":
            task = f"{len(self.tasks):032x}"
            self.tasks[task] = {**data, "id": task, "status": "created", "hyperparams": {}, "execution": {}, "script": {}}
            return {"id": task}
        if name in ("events.add_batch", "events.add"):
            for one in data if isinstance(data, list) else [data]:
                key = (one.get("task"), one.get("type"), one.get("metric"), one.get("variant"), one.get("iter"), one.get("key"))
                self.events.setdefault(key, []).append(one)
            return {"added": 1, "errors": 0}
        task = self.tasks.get(data.get("task")) if isinstance(data, dict) else None
        if service == "tasks" and task is not None:
            new = {"started": "in_progress", "failed": "failed", "stopped": "stopped", "completed": "completed"}.get(action)
            if new is not None:
                task["status"] = new
                task["status_message"] = data.get("status_message")
            if action in ("edit", "update"):
                task.update({key: value for key, value in data.items() if key not in ("task", "force")})
            if action == "edit_hyper_params":
                for one in data["hyperparams"]:
                    task["hyperparams"].setdefault(one["section"], {})[one["name"]] = one
            if action == "add_or_update_artifacts":
                kept = task["execution"].setdefault("artifacts", [])
                names = {one["key"] for one in data["artifacts"]}
                kept[:] = [one for one in kept if one["key"] not in names] + data["artifacts"]
            return {"task": task, "updated": 1, "started": 1}
        if name == "tasks.get_all":
            ids = data.get("id") or []
            return {"tasks": [self.tasks[one] for one in ([ids] if isinstance(ids, str) else ids) if one in self.tasks]}
        return {"updated": 1, "tasks": [], "total": 0}
