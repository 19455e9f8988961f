"""A team with its share of the machines, and an experiment of three sandboxes."""

import os

from dsec_components.experiment import Experiment
from dsec_components.tenant import Tenant
from pulumi import ResourceOptions
from pulumi_kubernetes import Provider

cluster = Provider("cluster", kubeconfig=os.environ["KUBECONFIG"], cluster_identifier="main")
quota = {"nominal": {"cpu_milli": 4000, "memory_bytes": 8 << 30}}
args = {"spec": {"projects": ["walk"], "quota": quota}, "editors": ["ada"]}
team = Tenant("walkers", args, ResourceOptions(provider=cluster))
limits = {"cpu_milli": 500, "memory_bytes": 256 << 20}
role = {"name": "worker", "replicas": 3, "image": "python:3.11-slim", "resources": limits}
walk = {"project": "walk", "spec": {"roles": [role]}}
Experiment("walk", walk, ResourceOptions(provider=cluster, depends_on=[team]))
