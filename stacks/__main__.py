"""The stack program: one typed configuration becomes a platform; a stack is data."""

import importlib
from typing import Any

import place
import pulumi
import pulumi_kubernetes as k8s
from dsec.api.config import platform_config
from dsec.api.mistakes import DocumentError
from dsec_components.guard import DeletionGuard
from dsec_components.inputs import problem
from dsec_components.platform import Platform, platform_args

config = pulumi.Config("dsec")
site = place.read(config)
stated: dict[str, Any] = config.require_object("platform")
try:
    settings = platform_config(place.filled(place.merged(site.platform, stated), site.words))
except DocumentError as error:
    raise problem(f"dsec:platform of stack {pulumi.get_stack()}", error.mistakes) from None

cluster = k8s.Provider(
    "cluster",
    kubeconfig=site.kubeconfig,
    # an edited kubeconfig must not replace the world
    cluster_identifier=site.identifier,
)
arguments = platform_args(settings, site.kubeconfig)
if site.access_key:
    store = arguments.setdefault("object_store", {})
    store["access_key"], store["secret_key"] = site.access_key, site.secret_key
if config.get_bool("awaitReady") is False:
    arguments["await_ready"] = False
platform = Platform("dsec", arguments, pulumi.ResourceOptions(provider=cluster))

# experiments written in Python: one module each, named by the stack
project = config.get("project") or next(
    (one for tenant in settings.tenants.values() for one in tenant.projects), "default"
)
declared: list[pulumi.Resource] = [
    importlib.import_module(f"examples.{name}").declare(
        project, pulumi.ResourceOptions(provider=cluster, depends_on=[platform])
    )
    for name in config.get_object("examples") or []
]
if declared:
    # they are deleted before the platform's own guard asks; this one asks before them
    DeletionGuard(
        "dsec-examples-guard",
        kubeconfig=site.kubeconfig,
        deletion=settings.deletion,
        opts=pulumi.ResourceOptions(depends_on=[platform, *declared]),
    )

pulumi.export("server", platform.gateway_url)
pulumi.export("caCertificate", platform.ca_certificate)
pulumi.export("apiKey", platform.api_key)
pulumi.export("namespace", platform.namespace)
pulumi.export("project", project)
pulumi.export(
    "context",
    pulumi.Output.concat(
        "pulumi stack output caCertificate > dsec-ca.pem; export DSEC_CA_FILE=$PWD/dsec-ca.pem ",
        "DSEC_SERVER=",
        platform.gateway_url,
        f" DSEC_PROJECT={project} ",
        'DSEC_API_KEY="$(pulumi stack output apiKey --show-secrets)"',
    ),
)
