"""What destroy checks first: who else still uses this installation.

`DeletionGuard` depends on everything, so the engine deletes it before everything. Its deletion is
the check; it runs in the dsec plugin (`dsec_components.host`), where no program is needed.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pulumi
import yaml
from dsec.api.config import Deletion
from dsec.api.meta import GROUP, VERSION

from dsec_components.common import STACK_LABEL, stack_label

TOKEN = "dsec:index:DeletionGuard"  # noqa: S105 - a type token
NAMED = 10
"""Experiments that a refusal names; the rest is a number."""
SILENCE_SECONDS = 30.0
"""How long an API server may be silent before destroy gives up: a restart takes less."""
PURGE_SECONDS = 150.0
"""How long the controller may take to collect and clean, in all, what purge ends and deletes."""
MARKED_SECONDS = 300
"""How long a tenant takes no more creates after purge has asked for its end."""
SETTLE_SECONDS = 45.0
"""How long sandboxes that end may still be counted: twice as long as a tenant's status may age."""
PAUSE_SECONDS = 2.0
UNREACHABLE = "PULUMI_K8S_DELETE_UNREACHABLE"
"""With this set, the Kubernetes provider forgets what it cannot reach; so does the guard."""
RECORDS = ("experiments", "sandboximages", "sandboxnodepools", "tenants", "replicationpolicies")
"""In the order of deletion. Nodes go with their definition."""

Object = dict[str, Any]


class SilentError(Exception):
    """The API server does not answer."""


class RefusedError(Exception):
    """Destroy must not go on; the message is for people."""


class Cluster(Protocol):
    """The few things that the guard asks of Kubernetes. All raise SilentError."""

    server: str

    def list(self, plural: str) -> list[Object]:
        """Return all records of a kind; none where the kind is unknown."""
        ...

    def delete(self, plural: str, record: Object) -> None:
        """Ask for deletion; what is gone already is no error."""
        ...

    def release(self, plural: str, record: Object) -> None:
        """Remove the finalizers of a record that nobody finishes."""
        ...

    def mark(self, tenant: Object, purge: Object) -> None:
        """Write `purge` into the status of a Tenant; one that is gone is no error."""
        ...


class DeletionGuard(pulumi.CustomResource):
    """Refuses destroy while experiments of others live, or deletes every record first (purge)."""

    def __init__(
        self,
        name: str,
        *,
        kubeconfig: pulumi.Input[str],
        deletion: Deletion,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare it; `opts.depends_on` names what it guards."""
        super().__init__(
            TOKEN,
            name,
            {
                "kubeconfig": pulumi.Output.secret(kubeconfig),
                "deletion": deletion.value,
                "stackLabel": stack_label(),
            },
            pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(additional_secret_outputs=["kubeconfig"]), opts
            ),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time for the guard: a clock in seconds and a way to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def check(
    cluster: Cluster, deletion: Deletion, stack: str, waiting: Waiting | None = None
) -> list[str]:
    """Let destroy go on, or raise RefusedError. Returns remarks for the log.

    protect: refuses while an experiment that another stack or a person declared has not completed,
    or while a tenant has sandboxes that were created one by one, without an experiment.
    purge: has the controller end every sandbox without an experiment, deletes every record that
    this stack does not delete itself, and waits for both.
    """
    waiting = waiting or Waiting()
    try:
        if deletion is Deletion.PROTECT:
            _refuse_foreign(_patiently(cluster, "experiments", waiting), stack)
            _refuse_keyed(cluster, waiting)
            return []
        return [*_purge_all(cluster, stack, waiting)]
    except SilentError as error:
        if os.environ.get(UNREACHABLE, "").lower() in {"1", "true"}:
            return [f"The Kubernetes API server at {cluster.server} is gone; so is what it held."]
        raise RefusedError(
            f"The Kubernetes API server at {cluster.server} did not answer for "
            f"{SILENCE_SECONDS:.0f} s ({error}); nothing was deleted. Start it and run destroy "
            f"again. If the cluster is gone for good, {UNREACHABLE}=true lets destroy forget it."
        ) from None


def _patiently(cluster: Cluster, plural: str, waiting: Waiting) -> list[Object]:
    end = waiting.now() + SILENCE_SECONDS
    while True:
        try:
            return cluster.list(plural)
        except SilentError:
            if waiting.now() >= end:
                raise
            waiting.sleep(PAUSE_SECONDS)


def _refuse_foreign(experiments: list[Object], stack: str) -> None:
    live = [_words(one) for one in _foreign(experiments, stack) if not _completed(one)]
    if not live:
        return
    rest = f" and {len(live) - NAMED} more" if len(live) > NAMED else ""
    count = "1 experiment" if len(live) == 1 else f"{len(live)} experiments"
    raise RefusedError(
        f"{count} that this stack did not declare would be lost: {', '.join(live[:NAMED])}{rest}. "
        "Nothing was deleted. Wait for them or delete them (dsec delete NAME --project "
        "PROJECT); or set `deletion: purge`, run `pulumi up`, and destroy again."
    )


def _purge_all(cluster: Cluster, stack: str, waiting: Waiting) -> Iterator[str]:
    tenants = _patiently(cluster, "tenants", waiting)
    marked = _mark(cluster, tenants)
    end = waiting.now() + PURGE_SECONDS
    # what is deleted and what is ended is waited for together: the controller does both at once
    yield from _delete(cluster, "experiments", stack, waiting)
    if keyed := _keyed(tenants):
        yield f"Purge ends sandboxes without an experiment: {keyed}."
    if left := _unended(cluster, marked, waiting, end):
        yield (
            f"Nobody ended the sandboxes without an experiment in {PURGE_SECONDS:.0f} s: {left}. "
            "They are left running on their nodes, and their results are not collected."
        )
    yield from _await(cluster, "experiments", stack, waiting, end)
    for plural in RECORDS[1:]:
        yield from _delete(cluster, plural, stack, waiting)
        yield from _await(cluster, plural, stack, waiting, end)


def _mark(cluster: Cluster, tenants: list[Object]) -> dict[str, str]:
    """Ask for the end of each tenant's sandboxes; return, by tenant, until when they are asked.

    In the status, as every live change: a destroy that fails after this leaves no trace in a spec,
    and the request lapses by itself.
    """
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=MARKED_SECONDS)
    asked = until.isoformat().replace("+00:00", "Z")
    found = {}
    for tenant in tenants:
        cluster.mark(tenant, {"by": "purge", "until": asked, "observed": False})
        found[_words(tenant)] = asked
    return found


def _unended(cluster: Cluster, marked: Mapping[str, str], waiting: Waiting, end: float) -> str:
    """Wait until no tenant has a sandbox without an experiment; return what is left at the end.

    Zero has to be seen twice: a create that was under way may have been bound after the first look.
    """
    zeros = 0
    while True:
        tenants = [one for one in _patiently(cluster, "tenants", waiting) if _words(one) in marked]
        unseen = [_words(one) for one in tenants if not _observed(one, marked[_words(one)])]
        left = _keyed(tenants)
        zeros = 0 if unseen or left else zeros + 1
        if zeros > 1:
            return ""
        if waiting.now() >= end:
            silent = f"no controller answers for {', '.join(unseen[:NAMED])}" if unseen else ""
            return "; ".join(filter(None, (left, silent)))
        waiting.sleep(PAUSE_SECONDS)


def _observed(tenant: Object, asked: str) -> bool:
    purge = (tenant.get("status") or {}).get("purge") or {}
    return bool(purge.get("observed")) and purge.get("until") == asked


def _refuse_keyed(cluster: Cluster, waiting: Waiting) -> None:
    """Refuse while sandboxes without an experiment live; ones that just ended are waited for."""
    end = waiting.now() + SETTLE_SECONDS
    while keyed := _keyed(_patiently(cluster, "tenants", waiting)):
        if waiting.now() >= end:
            raise RefusedError(
                f"Sandboxes that were created without an experiment would be left behind: {keyed}. "
                "Nothing was deleted. Wait for them or stop them (`stop` of the SDK, or DELETE "
                "/v1/projects/PROJECT/sandboxes/ID; dsec get sandboxes lists them); or set "
                "`deletion: purge`, run `pulumi up`, and destroy again."
            )
        waiting.sleep(PAUSE_SECONDS)


def _keyed(tenants: list[Object]) -> str:
    """Name the tenants that have sandboxes without an experiment, and how many."""
    found = []
    for tenant in tenants:
        projects = (tenant.get("spec") or {}).get("projects") or []
        if count := (tenant.get("status") or {}).get("keyed") or 0:
            found.append(f"{count} of {_words(tenant)} (projects: {', '.join(projects)})")
    return "; ".join(found)


def _delete(cluster: Cluster, plural: str, stack: str, waiting: Waiting) -> Iterator[str]:
    """Ask for the deletion of every record of a kind that the stack does not delete itself."""
    foreign = list(_foreign(_patiently(cluster, plural, waiting), stack))
    for one in foreign:
        cluster.delete(plural, one)
    if foreign:
        yield f"Purge deletes {len(foreign)} {plural}: {', '.join(map(_words, foreign[:NAMED]))}"


def _await(
    cluster: Cluster, plural: str, stack: str, waiting: Waiting, end: float
) -> Iterator[str]:
    """Wait for what was deleted; where nobody finishes it, let go of it."""
    while left := list(_foreign(_patiently(cluster, plural, waiting), stack)):
        if waiting.now() >= end:
            _release(cluster, plural, left)
            yield (
                f"Nobody finished {len(left)} {plural} in {PURGE_SECONDS:.0f} s; "
                "their finalizers were removed, their results were not collected."
            )
            return
        waiting.sleep(PAUSE_SECONDS)


def _release(cluster: Cluster, plural: str, left: list[Object]) -> None:
    """Take the finalizers off records that nobody finishes. Raises RefusedError."""
    try:
        for one in left:
            cluster.release(plural, one)
    except SilentError as error:
        raise RefusedError(
            f"{len(left)} {plural} wait for a controller that does not run, and the API server "
            f"takes no change of them ({error}): {', '.join(map(_words, left[:NAMED]))}. Start "
            "the dsec control plane, or delete the ValidatingWebhookConfiguration dsec-records, "
            "and run destroy again."
        ) from None


def _foreign(records: list[Object], stack: str) -> Iterator[Object]:
    for one in records:
        if (one["metadata"].get("labels") or {}).get(STACK_LABEL) != stack:
            yield one


def _completed(record: Object) -> bool:
    conditions = (record.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Completed" and one["status"] == "True" for one in conditions)


def _words(record: Object) -> str:
    metadata = record["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


class KubernetesCluster:
    """The cluster of a kubeconfig text."""

    def __init__(self, kubeconfig: str) -> None:
        from kubernetes import client, config

        loader: Any = config
        data: Mapping[str, Any] = yaml.safe_load(kubeconfig)
        api = loader.new_client_from_config_dict(data, persist_config=False)
        api.configuration.retries = False
        self.server = str(api.configuration.host)
        self._api = client.CustomObjectsApi(api)

    def list(self, plural: str) -> list[Object]:
        """Return all records of a kind; none where the kind is unknown."""
        answer = self._call(
            "list_cluster_custom_object", group=GROUP, version=VERSION, plural=plural
        )
        return list(answer.get("items", [])) if answer else []

    def delete(self, plural: str, record: Object) -> None:
        """Ask for deletion; what is gone already is no error."""
        self._call("delete", **_place(plural, record))

    def release(self, plural: str, record: Object) -> None:
        """Remove the finalizers of a record that nobody finishes."""
        self._call("patch", **_place(plural, record), body={"metadata": {"finalizers": None}})

    def mark(self, tenant: Object, purge: Object) -> None:
        """Write `purge` into the status of a Tenant; one that is gone is no error."""
        place = _place("tenants", tenant)
        self._call("patch_cluster_custom_object_status", **place, body={"status": {"purge": purge}})

    def _call(self, verb: str, **arguments: Any) -> Any:
        """Call the API with limits; None where the object or kind does not exist."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        if verb in {"delete", "patch"}:
            scope = "namespaced" if "namespace" in arguments else "cluster"
            verb = f"{verb}_{scope}_custom_object"
        try:
            return getattr(self._api, verb)(**arguments, _request_timeout=(5, 15))
        except ApiException as error:
            if error.status == 404:  # noqa: PLR2004 - HTTP: not found
                return None
            if error.status in {429, 500, 502, 503, 504}:
                raise SilentError(f"HTTP {error.status}") from None
            raise RefusedError(
                f"The Kubernetes API server at {self.server} refused {verb} of dsec records: "
                f"HTTP {error.status} {error.reason}. Nothing was deleted."
            ) from None
        except (HTTPError, OSError) as error:
            raise SilentError(_short(error)) from None


def _short(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(reason).rsplit(": ", maxsplit=1)[-1].strip("()'\"") or type(error).__name__


def _place(plural: str, record: Object) -> dict[str, Any]:
    metadata = record["metadata"]
    where = {"group": GROUP, "version": VERSION, "plural": plural, "name": metadata["name"]}
    if metadata.get("namespace"):
        where["namespace"] = metadata["namespace"]
    return where
