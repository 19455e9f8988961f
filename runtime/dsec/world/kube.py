"""Records in a Kubernetes API server: plain JSON over its REST paths, errors in our own words.

Owns one pool of connections: create it inside the event loop that uses it, and `close` it. A watch
that is silent for WATCH_SECONDS is ended by the server and begun again by the caller's cache.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTResponse

from dsec.world.records import (
    Access,
    Record,
    RecordConflictError,
    RecordInvalidError,
    RecordList,
    RecordNotFoundError,
    RecordsError,
    User,
    WatchEvent,
    WatchExpiredError,
)

CALL_SECONDS = 10.0
WATCH_SECONDS = 240
"""The server ends a watch after this long; the client gives up WATCH_MARGIN later."""
WATCH_MARGIN = 15.0
PAGE = 500
POOL = 100
"""Connections at once: a watch holds one for its whole life."""
REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    }
)


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind lives in the API."""

    api: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, an object or a part of it."""
        parts = [f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


DSEC = "dsec.dev/v1alpha1"
KINDS: dict[str, Kind] = {
    "Experiment": Kind(DSEC, "experiments", True),
    "SandboxImage": Kind(DSEC, "sandboximages", True),
    "Budget": Kind(DSEC, "budgets", True),
    "Tenant": Kind(DSEC, "tenants", False),
    "SandboxNode": Kind(DSEC, "sandboxnodes", False),
    "SandboxNodePool": Kind(DSEC, "sandboxnodepools", False),
    "ReplicationPolicy": Kind(DSEC, "replicationpolicies", False),
    "Namespace": Kind("v1", "namespaces", False),
    "Secret": Kind("v1", "secrets", True),
    "ConfigMap": Kind("v1", "configmaps", True),
    "Lease": Kind("coordination.k8s.io/v1", "leases", True),
}


async def connect(kubeconfig: Path | None = None, context: str = "") -> "KubeRecords":
    """Return a client by kubeconfig, else as a pod. Raises RecordsError where neither works."""
    settings = Configuration()
    settings.connection_pool_maxsize = POOL
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig) if kubeconfig else None,
                context=context or None,
                client_configuration=settings,
                persist_config=False,
            )
    except (config.ConfigException, OSError) as problem:
        raise RecordsError(f"no access to a Kubernetes cluster: {problem}") from problem
    return KubeRecords(ApiClient(settings))


class KubeRecords:
    """The record store that is a Kubernetes API server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: str, name: str, namespace: str = "") -> Record:
        """Return one record. Raises RecordNotFoundError."""
        return await self._call("GET", KINDS[kind].path(namespace, name))

    async def list(self, kind: str, namespace: str = "", selector: str = "") -> RecordList:
        """Return all records of a kind, read in pages of one version."""
        where = KINDS[kind]
        items: list[Record] = []
        token = ""
        while True:
            query = {"limit": str(PAGE)}
            query |= {"labelSelector": selector} if selector else {}
            query |= {"continue": token} if token else {}
            try:
                page = await self._call("GET", where.path(namespace), query)
            except WatchExpiredError:
                # the pages grew too old while they were read: begin again
                items, token = [], ""
                continue
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                break
        for item in items:
            item |= {"apiVersion": where.api, "kind": kind}
        return RecordList(items, page["metadata"]["resourceVersion"])

    async def watch(self, kind: str, resource_version: str) -> AsyncIterator[WatchEvent]:
        """Yield changes; ends when the server ends it. Raises WatchExpiredError, RecordsError."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SECONDS + WATCH_MARGIN)
        try:
            response = await self._send("GET", KINDS[kind].path(), query, timeout=timeout)
            async with response.response as stream:
                if stream.status >= HTTPStatus.BAD_REQUEST:
                    raise _error(stream.status, await stream.read())
                async for line in stream.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise _error(int(status.get("code", 500)), json.dumps(status).encode())
                    yield WatchEvent(event["type"], event["object"])
        except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
            raise RecordsError(f"watch of {kind} broke: {problem}") from problem

    async def create(self, record: Record) -> Record:
        """Create. Raises RecordConflictError when it exists, RecordInvalidError."""
        where, namespace, _ = self._place(record)
        return await self._call("POST", where.path(namespace), body=record)

    async def apply(self, record: Record, manager: str = "dsec") -> Record:
        """Create or update by server-side apply. Idempotent."""
        where, namespace, name = self._place(record)
        return await self._call(
            "PATCH",
            where.path(namespace, name),
            {"fieldManager": manager, "force": "true"},
            body=record,
            content="application/apply-patch+yaml",
        )

    async def replace(self, record: Record) -> Record:
        """Replace spec and metadata. Raises RecordConflictError."""
        where, namespace, name = self._place(record)
        return await self._call("PUT", where.path(namespace, name), body=record)

    async def replace_status(self, record: Record) -> Record:
        """Replace status alone. Raises RecordConflictError."""
        where, namespace, name = self._place(record)
        return await self._call("PUT", where.path(namespace, name, "status"), body=record)

    async def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Delete; deleting what is absent is no error. With uid: only that very object."""
        body = {"preconditions": {"uid": uid}} if uid else {}
        try:
            await self._call("DELETE", KINDS[kind].path(namespace, name), body=body)
        except RecordNotFoundError:
            return

    async def allowed(self, user: User, access: Access) -> tuple[bool, str]:
        """Answer a SubjectAccessReview."""
        attributes = {
            "verb": access.verb,
            "group": access.group,
            "resource": access.resource,
            "subresource": access.subresource,
            "namespace": access.namespace,
            "name": access.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "groups": list(user.groups),
                "extra": {name: list(values) for name, values in user.extra.items()},
                "resourceAttributes": {k: v for k, v in attributes.items() if v},
            },
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        status = (await self._call("POST", path, body=review))["status"]
        return bool(status.get("allowed")), str(status.get("reason", ""))

    async def authenticate(self, token: str, audience: str = "") -> User | None:
        """Answer a TokenReview: the user of a bearer token, or None."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token} | ({"audiences": [audience]} if audience else {}),
        }
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        status = (await self._call("POST", path, body=review))["status"]
        if not status.get("authenticated"):
            return None
        found = status["user"]
        extra = {name: tuple(values) for name, values in (found.get("extra") or {}).items()}
        return User(found.get("username", ""), tuple(found.get("groups") or ()), extra)

    @staticmethod
    def _place(record: Record) -> tuple[Kind, str, str]:
        meta = record["metadata"]
        return KINDS[record["kind"]], meta.get("namespace", ""), meta["name"]

    async def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        *,
        body: Any = None,
        content: str = "application/json",
    ) -> Record:
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        try:
            response = await self._send(
                method, path, query or {}, body=body, content=content, timeout=timeout
            )
            data = await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as problem:
            raise RecordsError(f"{method} {path}: {problem or type(problem).__name__}") from problem
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise _error(response.status, data)
        try:
            return dict(json.loads(data))
        except ValueError as problem:
            raise RecordsError(f"{method} {path}: unreadable answer") from problem

    async def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        *,
        body: Any = None,
        content: str = "application/json",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own limits, by phase
    ) -> RESTResponse:
        headers = {"Accept": "application/json", "Content-Type": content}
        target = f"{path}?{urlencode(query)}" if query else path
        sent = await self._api.param_serialize(
            method, target, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        url, all_headers = sent[1], sent[2]
        response: RESTResponse = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=all_headers, body=body, _request_timeout=timeout
        )
        return response


def _error(status: int, data: bytes) -> Exception:
    """Return the error of an answer in our own words."""
    try:
        told = json.loads(data)
        message = str(told.get("message", "")) if isinstance(told, dict) else ""
    except ValueError:
        message = data[:300].decode(errors="replace")
    message = message or f"status {status}"
    if status == HTTPStatus.NOT_FOUND:
        return RecordNotFoundError(message)
    if status == HTTPStatus.CONFLICT:
        return RecordConflictError(message)
    if status == HTTPStatus.GONE:
        return WatchExpiredError(message)
    if status in REFUSALS:
        return RecordInvalidError(message)
    return RecordsError(message)
