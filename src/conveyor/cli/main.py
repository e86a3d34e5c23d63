"""The entry point. `serve` runs without Typer, whose import takes a third as long as a broker takes to be ready.

Exit codes: 0 success, 1 failure (one line on stderr gives the reason), 2 invalid command line.
"""

import sys

from conveyor.kernel.errors import ConveyorError


def main() -> None:
    """Run the command that the process's arguments name. An expected failure prints one line and exits with 1."""
    try:
        _run(sys.argv[1:])
    except ConveyorError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(reason: str) -> None:
    print(f"conveyor: {reason}", file=sys.stderr)
    sys.exit(1)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        from conveyor.cli.serve import serve

        return serve(arguments[1:])
    from conveyor.cli.app import app

    app(arguments, prog_name="conveyor")


if __name__ == "__main__":
    main()
