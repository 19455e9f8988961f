"""The validating webhook: AdmissionReview in, AdmissionReview out, every error at once.

A pure decision over the record and a view of the tenants that the gateway keeps anyway: no
mutation, no side effect, no call to anything. What can never run is refused; what cannot run now
is accepted and waits. The gateway serves the route on its TLS port; nothing is lost in a crash.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsec.api.documents.crosscheck import unknown_presets
from dsec.api.meta import PROJECT_LABEL, TENANT_LABEL
from dsec.api.mistakes import Mistake, mistakes_of
from dsec.api.records import (
    Experiment,
    ReplicationPolicy,
    SandboxImage,
    SandboxNodePool,
    Tenant,
)
from dsec.api.tenant import TenantSpec
from dsec.rules import COPY_RULES, POOL_RULES, Facts, Settings, Severity, check
from dsec.rules.replication import mistakes as replication_mistakes
from dsec.rules.verdict import judge

MAX_BODY_BYTES = 4 << 20
"""Larger than any object that the API server stores (1.5 MiB), old and new together."""


class TenantView(Protocol):
    """What the gateway knows of tenants; it follows their records."""

    def tenants(self) -> Mapping[str, TenantSpec] | None:
        """Return every tenant by name, or None before the first list is complete."""
        ...


@dataclass(slots=True)
class Answer:
    """What is wrong with one object, with full paths, and what should change."""

    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, path: str, value: Any, message: str) -> None:
        """Note one mistake."""
        self.mistakes.append(Mistake(path, value, message, message))


@dataclass(frozen=True, slots=True)
class Webhook:
    """The settings under which reviews are answered.

    `controllers` are the users that may label namespaces, as Kubernetes names them.
    """

    view: TenantView
    settings: Settings = field(default_factory=Settings)
    controllers: frozenset[str] = frozenset({"system:serviceaccount:dsec-system:dsec-controller"})

    def review(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an AdmissionReview. Raises ValueError when it is none."""
        request = body.get("request")
        uid = request.get("uid") if isinstance(request, Mapping) else None
        if not uid or not isinstance(request, Mapping):
            raise ValueError("request.uid is required: not an AdmissionReview of v1")
        answer = self._judge(request)
        response: dict[str, Any] = {"uid": uid, "allowed": not answer.mistakes}
        if answer.warnings:
            response["warnings"] = answer.warnings
        if answer.mistakes:
            response["status"] = _status(answer.mistakes)
        return {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": response,
        }

    def _judge(self, request: Mapping[str, Any]) -> Answer:
        answer = Answer()
        new, old = request.get("object"), request.get("oldObject")
        kind = _text(request.get("kind"), "kind")
        judges: Mapping[str, Callable[[Mapping[str, Any], Answer, Mapping[str, Any]], None]] = {
            "Experiment": self._experiment,
            "Tenant": self._tenant,
            "SandboxImage": self._image,
            "SandboxNodePool": _pool,
            "ReplicationPolicy": self._replication,
            "Namespace": self._namespace,
        }
        if kind not in judges or not isinstance(new, Mapping):
            return answer
        if kind != "Namespace" and _only_metadata_changed(new, old):
            # a record that leaves must be able to: its finalizers come off by an update
            return answer
        try:
            judges[kind](new, answer, request)
        except ValidationError as error:
            answer.mistakes += mistakes_of(error)
        return answer

    def _known(self, answer: Answer) -> Mapping[str, TenantSpec] | None:
        tenants = self.view.tenants()
        if tenants is None:
            answer.refuse("", None, "the gateway has not read the tenants yet; try again")
        return tenants

    def _experiment(
        self, new: Mapping[str, Any], answer: Answer, request: Mapping[str, Any]
    ) -> None:
        record = Experiment.model_validate(new)
        tenants = self._known(answer)
        if tenants is None:
            return
        namespace = str(request.get("namespace") or record.metadata.namespace)
        owner = owner_of(namespace, tenants)
        facts = Facts(namespace, owner or "", tenants.get(owner) if owner else None)
        verdict = judge(record.spec, name=record.given_name, facts=facts, settings=self.settings)
        answer.warnings += verdict.warnings
        for one in verdict.mistakes:
            prefix = "" if one.path.startswith("metadata.") else "spec."
            answer.mistakes.append(
                Mistake(f"{prefix}{one.path}", one.value, one.allowed, one.message)
            )

    def _tenant(self, new: Mapping[str, Any], answer: Answer, _: Mapping[str, Any]) -> None:
        record = Tenant.model_validate(new)
        tenants = self._known(answer)
        if tenants is None:
            return
        others = {name: spec for name, spec in tenants.items() if name != record.metadata.name}
        for at, project in enumerate(record.spec.projects):
            owner = owner_of(project, others)
            if owner:
                message = f"project {project} belongs to tenant {owner}"
                answer.refuse(f"spec.projects[{at}]", project, message)
        for at, alias in enumerate(record.spec.document_tenants):
            if alias in others:
                message = f"{alias} is the name of another tenant"
                answer.refuse(f"spec.documentTenants[{at}]", alias, message)
        _quota(record.spec, answer)
        presets = record.spec.defaults.presets
        answer.mistakes += unknown_presets(presets, "spec.defaults.presets")

    def _image(self, new: Mapping[str, Any], answer: Answer, request: Mapping[str, Any]) -> None:
        record = SandboxImage.model_validate(new)
        tenants = self._known(answer)
        if tenants is None:
            return
        owner = owner_of(str(request.get("namespace")), tenants)
        registries = tenants[owner].registries if owner else []
        if registries and not any(record.spec.reference.startswith(one) for one in registries):
            message = f"must start with one of {', '.join(registries)} (rule tenant)"
            answer.refuse("spec.reference", record.spec.reference, message)

    def _replication(self, new: Mapping[str, Any], answer: Answer, _: Mapping[str, Any]) -> None:
        record = ReplicationPolicy.model_validate(new)
        answer.mistakes += replication_mistakes(record.spec)
        said = {one.path for one in answer.mistakes}
        found = check(
            record.record()["spec"],
            name=record.metadata.name,
            settings=self.settings,
            rules=COPY_RULES,
            kind=record.kind,
        )
        # what both see is said once
        answer.mistakes += [
            Mistake(one.path, one.value, one.remedy, one.message)
            for one in found
            if one.path not in said
        ]

    def _namespace(
        self, new: Mapping[str, Any], answer: Answer, request: Mapping[str, Any]
    ) -> None:
        user = _text(request.get("userInfo"), "username")
        if user in self.controllers:
            return
        before, after = _labels(request.get("oldObject")), _labels(new)
        for key in (TENANT_LABEL, PROJECT_LABEL):
            if before.get(key) != after.get(key):
                message = (
                    "must be written by the Tenant controller alone (rule tenant): "
                    "list the namespace in spec.projects of its Tenant"
                )
                answer.refuse(f"metadata.labels.{key}", after.get(key), message)


def owner_of(namespace: str, tenants: Mapping[str, TenantSpec]) -> str | None:
    """Return the tenant that lists a namespace among its projects."""
    return next((name for name, spec in tenants.items() if namespace in spec.projects), None)


def admission_route(webhook: Webhook, path: str = "/admission") -> Route:
    """Return the route that the API server calls; 400 for what is no AdmissionReview."""

    async def endpoint(request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return JSONResponse({"message": "the review is too large"}, status_code=413)
        try:
            review = json.loads(body)
            answer = webhook.review(review if isinstance(review, dict) else {})
        except (ValueError, RecursionError) as error:
            # whoever reaches the port may send anything
            return JSONResponse({"message": str(error)}, status_code=400)
        return JSONResponse(answer)

    return Route(path, endpoint, methods=["POST"])


def _pool(new: Mapping[str, Any], answer: Answer, _: Mapping[str, Any]) -> None:
    record = SandboxNodePool.model_validate(new)
    found = check(
        record.record()["spec"], name=record.metadata.name, rules=POOL_RULES, kind=record.kind
    )
    for one in found:
        if one.severity is Severity.WARNING:
            answer.warnings.append(f"{one.message} {one.remedy}")
        else:
            answer.mistakes.append(Mistake(one.path, one.value, one.remedy, one.message))


def _quota(spec: TenantSpec, answer: Answer) -> None:
    ceiling = spec.quota.ceiling
    if ceiling is None:
        return
    for name, info in type(ceiling).model_fields.items():
        most, own = getattr(ceiling, name), getattr(spec.quota.nominal, name)
        if most is not None and own is not None and most < own:
            path = f"spec.quota.ceiling.{info.alias or name}"
            answer.refuse(path, most, f"must be at least the nominal share ({own})")


def _only_metadata_changed(new: Mapping[str, Any], old: Any) -> bool:
    return isinstance(old, Mapping) and new.get("spec") == old.get("spec")


def _text(value: Any, name: str) -> str:
    """Return a text of a mapping; empty where there is none."""
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else ""


def _labels(record: Any) -> Mapping[str, Any]:
    meta = record.get("metadata") if isinstance(record, Mapping) else None
    labels = meta.get("labels") if isinstance(meta, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


def _status(mistakes: list[Mistake]) -> dict[str, Any]:
    """Return a Status whose message lists every mistake on a line of its own."""
    lines = [f"{one.path}: {one.message}" if one.path else one.message for one in mistakes]
    return {
        "code": 422,
        "reason": "Invalid",
        "message": lines[0] if len(lines) == 1 else "\n  " + "\n  ".join(lines),
        "details": {
            "causes": [
                {"reason": "FieldValueInvalid", "field": one.path, "message": one.message}
                for one in mistakes
            ]
        },
    }
