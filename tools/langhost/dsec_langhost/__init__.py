"""A Python language host for Pulumi made from the SDK alone, for machines without a release.

`interpreter` decides which Python runs a program; `host` answers the engine; `program` and
`packages` are scripts that run in that other Python; `children` starts and streams processes.
"""
