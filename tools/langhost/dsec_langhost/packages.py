"""Print, as JSON, what is installed in the Python that runs this script.

Run by file name in the program's interpreter, so it imports nothing but the standard library.
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any


def normal(name: str) -> str:
    """Return a distribution's name in the form that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str | None:
    """Return which distribution a requirement asks for; None for an optional extra."""
    if "extra ==" in requirement or "extra==" in requirement:
        return None
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return normal(match.group()) if match else None


def dependencies() -> list[dict[str, Any]]:
    """Return every distribution; `direct` is true where no other one requires it."""
    versions: dict[str, str] = {}
    required: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name:
            continue
        versions.setdefault(normal(name), distribution.version)
        for requirement in distribution.requires or ():
            wanted = requirement_name(requirement)
            if wanted and wanted != normal(name):
                required.add(wanted)
    return [
        {"name": name, "version": version, "direct": name not in required}
        for name, version in sorted(versions.items())
    ]


def plugins(paths: list[str], versions: dict[str, str]) -> list[dict[str, Any]]:
    """Return the contents of every pulumi-plugin.json of an importable package with a resource."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for file in sorted(Path(path or ".").glob("*/pulumi-plugin.json")):
            try:
                entry = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            package = normal(file.parent.name)
            if not entry.get("resource"):
                continue
            entry.setdefault("name", package.removeprefix("pulumi-"))
            if not entry.get("version"):
                entry["version"] = versions.get(package, "")
            found.setdefault(entry["name"], entry)
    return list(found.values())


def main() -> None:
    """Write the report to standard output."""
    installed = dependencies()
    versions = {entry["name"]: entry["version"] for entry in installed}
    report = {
        "executable": sys.executable,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "dependencies": installed,
        "plugins": plugins(sys.path[1:], versions),
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
