"""What really runs a sandbox: OCI runtime, or simulated."""
