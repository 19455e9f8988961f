"""Entry of the policy pack. Only here: the constructor of PolicyPack serves and never returns."""  # noqa: INP001 - the engine runs the folder

from dsec_policies import policies
from pulumi_policy import PolicyPack

PolicyPack(name="dsec", policies=policies())
