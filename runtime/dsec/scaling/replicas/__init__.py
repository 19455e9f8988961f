"""How many replicas a role should have: rules by preset, and one look after the other. Pure."""
