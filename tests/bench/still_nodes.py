"""Simulated nodes whose images take long to come: `python -m still_nodes DIRECTORY`.

They take, store and acknowledge creates as all nodes do. What a sandbox does after that is the work
of its own machine, of which a peer without nodes has nothing: it must not take the time of what is
measured on this one.
"""

import sys
from dataclasses import replace

from dsec.agent import simnodes
from dsec.agent.substrates.simulated import PROFILES

PULL_SECONDS = 3600.0

if __name__ == "__main__":
    for name, profile in PROFILES.items():
        PROFILES[name] = replace(profile, pull=(PULL_SECONDS, PULL_SECONDS))
    sys.exit(simnodes.main())
