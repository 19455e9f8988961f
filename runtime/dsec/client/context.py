"""Where a client finds its server: a small JSON file, overridden by the environment.

The file is `$XDG_CONFIG_HOME/dsec/context.json` (by default under ~/.config), readable by its
owner only, written by `dsec up` and `dsec local up`. Each field has an environment variable
that wins: DSEC_SERVER, DSEC_API_KEY, DSEC_CA_FILE, DSEC_PROJECT.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from dsec.client.errors import ContextError

DEFAULT_PROJECT = "default"
"""The project of a call that names none; `dsec up` creates it."""

_ENVIRONMENT = {
    "server": "DSEC_SERVER",
    "api_key": "DSEC_API_KEY",
    "ca_file": "DSEC_CA_FILE",
    "project": "DSEC_PROJECT",
}


@dataclass(frozen=True, slots=True)
class Context:
    """A server and who one is there. `ca_file` is empty where the system's roots are enough."""

    server: str = ""
    api_key: str = ""
    ca_file: str = ""
    project: str = DEFAULT_PROJECT

    def checked(self) -> "Context":
        """Return this context, or raise ContextError where a call could not be made with it."""
        if not self.server:
            raise ContextError(
                "no server is known: start one with 'dsec up --standalone', "
                "or set DSEC_SERVER and DSEC_API_KEY"
            )
        if not self.server.startswith(("http://", "https://")):
            raise ContextError(f"server is {self.server!r}; it must begin with http:// or https://")
        if self.ca_file and not Path(self.ca_file).is_file():
            raise ContextError(f"ca_file is {self.ca_file!r}; there is no such file")
        if not self.project:
            raise ContextError("project is empty; set DSEC_PROJECT or give --project")
        return self


def path(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the context file is, whether it exists or not."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME") or str(
        Path(environ.get("HOME", "~")).expanduser() / ".config"
    )
    return Path(base) / "dsec" / "context.json"


def save(context: Context, file: Path | None = None) -> Path:
    """Write the context file, readable by its owner only, in one step; return where it is."""
    file = file or path()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(context), stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    return file


def load(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Context:
    """Return the context of this user. A missing file is an empty context.

    Raises ContextError where the file is not the JSON object it should be.
    """
    environ = os.environ if environ is None else environ
    file = file or path(environ)
    context = Context()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror}") from error
    if text:
        context = _parse(file, text)
    overrides = {name: environ[key] for name, key in _ENVIRONMENT.items() if environ.get(key)}
    return replace(context, **overrides)


def _parse(file: Path, text: str) -> Context:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ContextError(
            f"{file}: not JSON ({error}); remove it or run 'dsec up' again"
        ) from error
    known = {field.name for field in fields(Context)}
    if not isinstance(data, dict) or any(
        not isinstance(value, str) for name, value in data.items() if name in known
    ):
        raise ContextError(
            f"{file}: must be one JSON object of strings ({', '.join(sorted(known))})"
        )
    return Context(**{name: value for name, value in data.items() if name in known})
