"""Key-value pairs that belong to the endpoint and commit with the run. Needs the import in `wit/world.wit` and
`grant = ["state"]` in `sprag.toml`.

A run sees its own writes. What it read is checked again when it commits: if another run changed it meanwhile, nothing
commits and the run is repeated. Values are bytes; a text may be given for bytes.
"""

import json
from contextlib import contextmanager
from typing import Any, Optional, Union

from componentize_py_types import Err
from wit_world.imports import state

from . import Failure, failed, transient


class StateFailed(Failure):
    """The host did not do it: `error` is `invalid` or `unavailable`."""

    def __init__(self, answer: state.StateError):
        if isinstance(answer, state.StateError_Invalid):
            self.error = "invalid"
            failure = failed("state-invalid", answer.value)
        else:
            self.error = "unavailable"
            failure = transient("the state's store could not be reached")
        super().__init__(failure.failure, str(failure))


@contextmanager
def _answered():
    try:
        yield
    except Err as error:
        raise StateFailed(error.value) from error


def get(key: str) -> Optional[bytes]:
    with _answered():
        return state.get(key)


def get_json(key: str, default: Any = None) -> Any:
    value = get(key)
    return default if value is None else json.loads(value)


def set(key: str, value: Union[str, bytes]) -> None:
    with _answered():
        state.set(key, _bytes(value))


def set_json(key: str, value: Any) -> None:
    set(key, json.dumps(value))


def delete(key: str) -> None:
    """Deleting what is not there is no error."""
    with _answered():
        state.delete(key)


def compare_and_set(key: str, expected: Union[str, bytes, None], value: Union[str, bytes, None]) -> bool:
    """Sets `value` (None: deletes) if the key now holds `expected` (None: is not there). Answers whether it did."""
    with _answered():
        return state.compare_and_set(key, _bytes(expected), _bytes(value))


def scan(prefix: str, after: Optional[str] = None, limit: int = 1000) -> list[tuple[str, bytes]]:
    """Entries whose key starts with `prefix`, in byte order of the keys, after the key `after`, at most `limit` (1 to 1,000)."""
    with _answered():
        return [(entry.key, entry.value) for entry in state.scan(prefix, after, limit)]


def _bytes(value: Union[str, bytes, None]) -> Optional[bytes]:
    return value.encode() if isinstance(value, str) else value
