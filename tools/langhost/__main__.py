"""Run one of the two programs that the engine looks for, named by the first argument."""  # noqa: INP001 - a folder that python runs, not a package

import sys


def main() -> int:
    """Start the language host or the server of dynamic providers."""
    name, arguments = sys.argv[1], sys.argv[2:]
    if name == "pulumi-language-python":
        from dsec_langhost.server import serve

        return serve()
    if name == "pulumi-resource-pulumi-python":
        from dsec_langhost.interpreter import OptionError, run_dynamic_provider

        try:
            run_dynamic_provider(arguments)
        except OptionError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    sys.stderr.write(f"no such program: {name}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
