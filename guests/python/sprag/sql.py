"""SQL in the transaction that the run's commit ends. Needs the import in `wit/world.wit`, `grant = ["sql:NAME"]` in `sprag.toml`, where NAME is
the endpoint's store, and an inbox with `mode = "transaction"`.

It begins with the first statement and commits together with the record that the message is done. A run that fails, or that turns out to be a
second copy, leaves nothing. A statement that fails changes nothing, and the run may go on. Parameters are written `$1`, `$2`.
"""

from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Optional
from uuid import UUID

from componentize_py_types import Err
from wit_world.imports import sql

from . import Failure, failed, transient

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class SqlFailed(Failure):
    """The statement was not carried out: `error` is `refused`, `failed`, `too-much` or `over`; `code` and `constraint` are the database's."""

    code: Optional[str] = None
    constraint: Optional[str] = None

    def __init__(self, answer: sql.SqlError):
        if isinstance(answer, sql.SqlError_Failed):
            self.error, self.code, self.constraint = "failed", answer.value.code, answer.value.constraint
            failure = failed("sql", f"{answer.value.text} ({answer.value.code})")
        elif isinstance(answer, sql.SqlError_Refused):
            self.error = "refused"
            failure = failed("sql-refused", answer.value)
        elif isinstance(answer, sql.SqlError_TooMuch):
            self.error = "too-much"
            failure = failed("sql-too-much", answer.value)
        else:
            self.error = "over"
            failure = transient(answer.value)
        super().__init__(failure.failure, str(failure))


@contextmanager
def _answered():
    try:
        yield
    except Err as error:
        raise SqlFailed(error.value) from error


def query(database: str, statement: str, parameters: list[Any] = []) -> list[dict[str, Any]]:
    """A dictionary for each row of one statement."""
    with _answered():
        found = sql.query(database, statement, [_to_value(value) for value in parameters])
    return [dict(zip(found.columns, map(_from_value, row))) for row in found.rows]


def execute(database: str, statement: str, parameters: list[Any] = []) -> int:
    """Carries one statement out. Answers how many rows it inserted, changed or deleted."""
    with _answered():
        return sql.execute(database, statement, [_to_value(value) for value in parameters])


def _to_value(value: Any) -> sql.Value:
    if value is None:
        return sql.Value_Null()
    # A boolean is an integer in Python, so it comes first.
    if isinstance(value, bool):
        return sql.Value_Boolean(value)
    if isinstance(value, int):
        return sql.Value_Integer(value)
    if isinstance(value, float):
        return sql.Value_Float(value)
    if isinstance(value, str):
        return sql.Value_Text(value)
    if isinstance(value, bytes):
        return sql.Value_Bytes(value)
    if isinstance(value, Decimal):
        return sql.Value_Decimal(str(value))
    if isinstance(value, UUID):
        return sql.Value_Uuid(str(value))
    if isinstance(value, datetime):
        return sql.Value_Timestamp((value - _EPOCH) // timedelta(microseconds=1))
    raise TypeError(f"{type(value).__name__} is no type of a parameter")


def _from_value(value: sql.Value) -> Any:
    if isinstance(value, sql.Value_Null):
        return None
    if isinstance(value, sql.Value_Decimal):
        return Decimal(value.value)
    if isinstance(value, sql.Value_Uuid):
        return UUID(value.value)
    if isinstance(value, sql.Value_Timestamp):
        return _EPOCH + timedelta(microseconds=value.value)
    return value.value
