"""A W&B server for the tests: what wandb-core asks of one, on the loopback, with the modes of ``satellite_server.Server``."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from dataclasses import dataclass, field

from satellite_server import Server

MANIFEST = "wandb_manifest.json"
_JSON = {"Content-Type": "application/json"}


@dataclass
class StoredRun:
    """What the server knows of one run; ``lines`` are the rows of its history, as it took them."""

    name: str
    config: dict = field(default_factory=dict)
    given: dict = field(default_factory=dict)  # tags, group, notes, display name
    lines: list[dict] = field(default_factory=list)
    summary: dict = field(default_factory=dict)
    exit_code: int | None = None
    complete: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    resumed_with: list[int] = field(default_factory=list)  # how many lines there were when somebody asked to go on

    def history(self):
        return [(line["_step"], line) for line in self.lines]


@dataclass
class StoredArtifact:
    """An artifact; ``files`` has its manifest too, as ``MANIFEST``."""

    name: str
    kind: str
    files: dict[str, bytes] = field(default_factory=dict)
    committed: bool = False


class Cloud(Server):
    """Stores runs by id, with their history; ``queries`` has the names of the GraphQL operations that were asked."""

    def __init__(self, mode="answer", **arguments):
        self.runs, self.artifacts, self.queries, self.given = {}, {}, [], threading.Lock()
        self.fail = lambda _query: False  # for which queries it has an error
        super().__init__(mode, reply=self._answer, **arguments)

    def environment(self, home):
        """What makes wandb talk to this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "0" * 40, "HOME": str(home), "WANDB_ERROR_REPORTING": "false"}

    def _answer(self, method, path, body):
        if path == "/graphql":
            asked = json.loads(body)
            if self.fail(asked["query"]):
                return 500, _JSON, b"{}"
            return 200, _JSON, json.dumps({"data": self._graphql(asked["query"], asked.get("variables") or {})}).encode()
        if path.endswith("/file_stream"):
            with self.given:
                self._stream(self.runs[path.split("/")[-2]], json.loads(body))
            return 200, _JSON, b'{"exitcode": null, "limits": {}}'
        if method == "PUT":
            _, where, name, file = urllib.parse.unquote(path).split("/", 3)
            (self.runs[name].files if where == "up" else self.artifacts[name].files)[file] = body
        if path == "/hang":
            self.mode = "hang"
        if path == "/lines":  # these two are for tests, not for wandb
            return 200, _JSON, str(sum(len(run.lines) for run in self.runs.values())).encode()
        return 200, _JSON, b"{}"

    def _stream(self, run, sent):
        files = sent.get("files") or {}
        history = files.get("wandb-history.jsonl")
        if history:
            del run.lines[history["offset"] :]  # sent again after an answer that got lost
            run.lines += [json.loads(line) for line in history["content"]]
        if "wandb-summary.json" in files:
            run.summary = json.loads(files["wandb-summary.json"]["content"][-1])
        if sent.get("complete"):
            run.complete, run.exit_code = True, sent["exitcode"]

    def _graphql(self, query, given):
        self.queries.append(query.split("(")[0].split("{")[0].strip())
        name = given.get("name") or given.get("run") or given.get("runName") or given.get("runId")
        if "Artifact" in self.queries[-1]:
            return self._artifact(self.queries[-1].split()[-1], given)
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": self._upsert(given), "inserted": True}}
        if "RunResumeStatus" in query:
            return {"model": {"id": "P", "name": "p", "entity": {"id": "E", "name": "ent"}, "bucket": self._resume(name)}}
        if "createRunFiles" in query:
            files = [{"name": file, "uploadUrl": f"{self.url}/up/{given['run']}/{file}"} for file in given["files"]]
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}
        if "coreWeaveOrganizationId" in query:
            return {"entity": {"organization": None}}
        if "serverInfo" in query or "ServerInfo" in query or "ServerFeatures" in query:
            versions = {"cliVersionInfo": {"max_cli_version": "99.0.0"}, "latestLocalVersionInfo": None, "features": []}
            return {"viewer": {"id": "V"}, "serverInfo": versions}
        if "viewer" in query:
            viewer = {"id": "V", "entity": "ent", "username": "someone", "email": "e", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": viewer}
        message = f"wandb asked what this server does not know: {query} {given}"
        raise ValueError(message)

    def _artifact(self, operation, given):
        if operation == "ArtifactType":
            return {"project": {"artifact": None}}
        if operation == "CreateArtifact":
            name = f"A{len(self.artifacts)}"
            self.artifacts[name] = StoredArtifact(given["input"]["artifactCollectionName"], given["input"]["artifactTypeName"])
            artifact = {"id": name, "state": "PENDING", "artifactSequence": {"id": "S", "name": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        if operation in ("CreateArtifactManifest", "UpdateArtifactManifest"):
            name = given.get("artifactID") or given["artifactManifestID"]
            file = {"id": "F", "uploadUrl": f"{self.url}/art/{name}/{MANIFEST}", "uploadHeaders": []}
            return {operation[0].lower() + operation[1:]: {"artifactManifest": {"id": name, "file": file}}}
        if operation == "CreateArtifactFiles":
            nodes = []
            for file in given["input"]["artifactFiles"]:
                url = f"{self.url}/art/{file['artifactID']}/{urllib.parse.quote(file['name'])}"
                more = {"uploadHeaders": [], "uploadMultipartUrls": None, "artifact": {"id": file["artifactID"]}}
                nodes.append({"node": {"name": file["name"], "storagePath": file["name"], "uploadUrl": url, **more}})
            return {"createArtifactFiles": {"files": {"edges": nodes}}}
        if operation == "CommitArtifact":
            self.artifacts[given["artifactID"]].committed = True
            return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": "d"}}}
        message = f"wandb asked what this server does not know: {operation} {given}"
        raise ValueError(message)

    def _upsert(self, given):
        name = given.get("name") or base64.b64decode(given["id"]).decode()
        run = self.runs.setdefault(name, StoredRun(name))
        if given.get("config"):
            run.config = {key: item["value"] for key, item in json.loads(given["config"]).items()}
        run.given |= {key: value for key, value in given.items() if value is not None and key != "config"}
        project = {"id": "P", "name": "p", "entity": {"id": "E", "name": "ent"}}
        return {
            "id": base64.b64encode(name.encode()).decode(), "name": name, "displayName": run.given.get("displayName") or name,
            "description": "", "config": "{}", "sweepName": None, "historyLineCount": len(run.lines), "project": project,
        }  # fmt: skip

    def _resume(self, name):
        run = self.runs.get(name)
        if run is None:
            return None
        run.resumed_with.append(len(run.lines))
        tail = json.dumps([json.dumps(line) for line in run.lines[-1:]])
        return {
            "name": name, "id": base64.b64encode(name.encode()).decode(), "displayName": name, "sweepName": None,
            "historyLineCount": len(run.lines), "eventsLineCount": 0, "logLineCount": 0, "historyTail": tail,
            "summaryMetrics": json.dumps(run.summary), "eventsTail": "[]", "tags": run.given.get("tags") or [],
            "config": json.dumps({key: {"value": value} for key, value in run.config.items()}), "wandbConfig": '{"t": 1}',
        }  # fmt: skip
