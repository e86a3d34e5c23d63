"""The entry point. `serve` runs without Typer, which takes a third of the time that a broker needs to be ready.

Exit codes: 0 done, 1 it could not be done (one line on stderr says why), 2 the command line is wrong.
"""

import sys

from conveyor.kernel.errors import ConveyorError


def main() -> None:
    """Run the command of the process's arguments. Expected failures print one line and exit with 1."""
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
