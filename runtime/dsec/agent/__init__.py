"""The node agent: owns its sandboxes and has the last word on admission."""
