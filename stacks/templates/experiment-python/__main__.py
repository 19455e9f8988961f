"""One experiment: a trainer with four simulators."""

import pulumi
import pulumi_kubernetes as k8s
from dsec_components.experiment import Experiment

config = pulumi.Config()
cluster = k8s.Provider(
    "cluster", kubeconfig=config.require_secret("kubeconfig"), cluster_identifier="dsec"
)
walk = Experiment(
    "walk",
    {
        "project": config.require("project"),
        "spec": {
            "roles": [
                {
                    "name": "trainer",
                    "command": ["python3", "train.py"],
                    "resources": {"cpu_milli": 4000, "memory_bytes": 16 << 30},
                },
                {
                    "name": "sim",
                    "replicas": 4,
                    "command": ["python3", "simulate.py"],
                    "resources": {"cpu_milli": 1000, "memory_bytes": 2 << 30},
                },
            ],
        },
    },
    pulumi.ResourceOptions(provider=cluster),
)
pulumi.export("experiment", walk.experiment_name)
