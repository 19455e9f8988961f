"""Policy pack of dsec; the rules themselves are in dsec.rules. Importing starts nothing."""

from dsec_policies.pack import policies

__all__ = ["policies"]
