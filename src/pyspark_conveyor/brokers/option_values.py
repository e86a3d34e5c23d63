"""The values of options: texts that become numbers, flags and choices, or an error that names the option."""

from collections.abc import Mapping

from pyspark_conveyor.pipeline_errors import PipelineError

_LARGEST = (1 << 63) - 1


def required_option(options: Mapping[str, str], *names: str) -> str:
    """Return an option that has several names. Raises PipelineError if it is missing."""
    for name in names:
        if options.get(name):
            return options[name]
    raise PipelineError(f"option '{names[0]}' is missing: set .option('{names[0]}', ...)")


def number_option(options: Mapping[str, str], name: str) -> int | None:
    """Return a number from 0; None if the option is missing. Raises PipelineError."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _LARGEST:
        raise PipelineError(f"option '{name}' is {text!r}: it takes a whole number")
    return int(text)


def count_option(options: Mapping[str, str], name: str) -> int | None:
    """Return a number from 1; None if the option is missing. Raises PipelineError."""
    count = number_option(options, name)
    if count == 0:
        raise PipelineError(f"option '{name}' is 0: it takes a number from 1")
    return count


def flag_option(options: Mapping[str, str], name: str) -> bool:
    """Return whether an option is true, as it is if it is missing. Raises PipelineError."""
    text = options.get(name.lower(), "true").lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option '{name}' is {text!r}: it takes true or false")
    return text == "true"


def choice_option(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return the option's value; the first choice is the default."""
    value = options.get(name.lower(), choices[0]).lower()
    if value not in choices:
        raise PipelineError(f"option '{name}' is {value!r}: it takes {' or '.join(choices)}")
    return value


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the client: those that begin with `kafka.`, without it."""
    return {
        name[len("kafka.") :]: value
        for name, value in options.items()
        if name.startswith("kafka.") and name != "kafka.bootstrap.servers"
    }
