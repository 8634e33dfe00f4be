"""Lines for the host's log; they carry the message's ids by themselves."""

from wit_world.imports.log import Level, write


def debug(text: object) -> None:
    write(Level.DEBUG, str(text))


def info(text: object) -> None:
    write(Level.INFO, str(text))


def warn(text: object) -> None:
    write(Level.WARN, str(text))


def error(text: object) -> None:
    write(Level.ERROR, str(text))
