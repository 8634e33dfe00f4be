"""Message handlers for Sprag, in Python. `sprag new --lang python` writes a copy of this folder into the new project.

    from sprag import WitWorld, failed, on, publish

    @on("ShipmentRequested")
    def ship(message):
        shipment = message.json()
        if not shipment["address"]:
            raise failed("no-address", f"order {shipment['order']} has no address")
        publish("invoices", "InvoiceRequested", json={"order": shipment["order"]})

The component exports `WitWorld`, so the handler's module must import it.

Nothing that a run publishes or writes to its state takes effect before it has returned, and then everything does, in one step
with the record that the message is done. So a handler may be run again for the same message.
"""

import json as _json
import traceback
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Optional, Union

import wit_world
from componentize_py_types import Err
from wit_world.imports import outgoing, types

from . import log

PropertyValue = types.PropertyValue
Property = types.Property

_functions: dict[str, Callable[["Message"], Optional["Success"]]] = {}


def on(*event_types: str):
    """Makes a function the one that handles these event types; `*` stands for any that no other handler names."""

    def register(function):
        for event_type in event_types:
            _functions[event_type] = function
        return function

    return register


class WitWorld(wit_world.WitWorld):
    """What the component exports."""

    def describe(self) -> types.HandlerInfo:
        return types.HandlerInfo(list(_functions))

    def handle(self, message: types.Message) -> types.Success:
        try:
            function = _functions.get(message.event_type) or _functions.get("*")
            if function is None:
                raise failed("no-handler", f"this handler takes no {message.event_type}")
            return _success(function(Message(message)))
        except Failure as failure:
            raise Err(failure.failure) from failure
        except Exception as error:
            log.error(traceback.format_exc())
            raise Err(failed("exception", f"{type(error).__name__}: {error}").failure) from error


class Message:
    """A message, as the handler sees it. What is not there is None."""

    def __init__(self, raw: types.Message):
        self.message_id = raw.message_id
        self.event_id = raw.event_id
        self.event_type = raw.event_type
        self.session_id = raw.session_id
        self.correlation_id = raw.correlation_id
        self.content_type = raw.content_type
        self.subject = raw.subject
        self.reply_to = raw.reply_to
        self.enqueued_at = _time(raw.enqueued_at)
        #: Each with its AMQP type. `property(name)` is simpler.
        self.properties = raw.properties
        self.body = raw.body
        self.body_kind = raw.body_kind

    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body, read as JSON. A body that is none can never be handled: it goes to the dead letters as `bad-body`."""
        try:
            return _json.loads(self.body)
        except ValueError as error:
            raise dead_letter("bad-body", f"{self.event_type}: {error}") from error

    def property(self, name: str, default: Any = None) -> Any:
        """The application property of this name, as the nearest Python value."""
        for property in self.properties:
            if property.name == name:
                if isinstance(property.value, types.PropertyValue_Null):
                    return None
                if isinstance(property.value, types.PropertyValue_Timestamp):
                    return _time(property.value.value)
                return property.value.value
        return default


# How a run ends well: return nothing (done), or one of these.


@dataclass
class Success:
    success: types.Success


def discard(reason: str) -> Success:
    """Nothing to do with this message. Outcome `skipped`; what the run wrote and published is dropped."""
    return Success(types.Success_Discard(reason))


def handoff(
    reason: str, external_id: Optional[str] = None, expected_by: Union[datetime, int, None] = None
) -> Success:
    """A system outside goes on with the work and settles it later; the session waits until then.

    `expected_by`, a time or milliseconds since 1970, is when it fails as `handoff-expired`."""
    return Success(types.Success_Handoff(types.Handoff(reason, external_id, _millis(expected_by))))


def _success(value: Optional[Success]) -> types.Success:
    if value is None:
        return types.Success_Done()
    if isinstance(value, Success):
        return value.success
    raise TypeError("a handler returns nothing, discard(...) or handoff(...)")


# How a run does not end well: raise one of these. Any other exception is a failure of the kind `exception`.


class Failure(Exception):
    """What a handler raises."""

    def __init__(self, failure: types.Failure, text: str):
        super().__init__(text)
        self.failure = failure


def transient(text: str, retry_after: Union[timedelta, int, None] = None) -> Failure:
    """Not the event's fault: the message is put back and comes again, after `retry_after` (milliseconds) at least."""
    return Failure(types.Failure_Transient(types.Transient(text, _millis(retry_after))), text)


def failed(kind: str, text: str, retry_after: Union[timedelta, int, None] = None) -> Failure:
    """The event failed, with a short stable kind that retry rules can name. Its session is blocked."""
    return Failure(types.Failure_Failed(types.Failed(kind, text, _millis(retry_after))), text)


def dead_letter(reason: str, text: str) -> Failure:
    """The message can never be handled."""
    return Failure(types.Failure_DeadLetter(types.DeadLetter(reason, text)), text)


# Outgoing messages.


class PublishFailed(Failure):
    """The host did not take a message: `error` is `not-allowed`, `invalid` or `too-much`."""

    _names = {
        outgoing.PublishError_NotAllowed: "not-allowed",
        outgoing.PublishError_Invalid: "invalid",
        outgoing.PublishError_TooMuch: "too-much",
    }

    def __init__(self, answer: outgoing.PublishError):
        self.error = self._names[type(answer)]
        super().__init__(failed(f"publish-{self.error}", answer.value).failure, answer.value)


def publish(
    entity: str,
    event_type: str,
    *,
    json: Any = None,
    body: Union[str, bytes, None] = None,
    at: Union[datetime, int, None] = None,
    message_id: Optional[str] = None,
    session_id: Optional[str] = None,
    correlation_id: Optional[str] = None,
    content_type: Optional[str] = None,
    properties: Union[dict[str, Any], list[types.Property], None] = None,
) -> str:
    """Holds a message back until the run has succeeded. Answers its id.

    The body is `json`, any value, or `body`, a text or bytes. With `at`, a time or milliseconds since 1970, it becomes visible then.
    `properties` is a dict, or a list of `Property` where the AMQP type matters."""
    if body is None:
        body = "" if json is None else _json.dumps(json)
        content_type = content_type or (None if json is None else "application/json")
    if properties is None or isinstance(properties, dict):
        properties = [types.Property(name, _property_value(value)) for name, value in (properties or {}).items()]
    message = outgoing.OutgoingMessage(
        entity=entity,
        event_type=event_type,
        message_id=message_id,
        session_id=session_id,
        correlation_id=correlation_id,
        content_type=content_type,
        properties=properties,
        body=body.encode() if isinstance(body, str) else body,
    )
    try:
        return outgoing.publish(message) if at is None else outgoing.schedule(message, _millis(at))
    except Err as error:
        raise PublishFailed(error.value) from error


def _property_value(value: Any) -> types.PropertyValue:
    # A bool is an int in Python, so it must come first.
    if value is None:
        return types.PropertyValue_Null()
    if isinstance(value, bool):
        return types.PropertyValue_Boolean(value)
    if isinstance(value, int):
        return types.PropertyValue_Integer(value) if value < 2**63 else types.PropertyValue_Unsigned(value)
    if isinstance(value, float):
        return types.PropertyValue_Float(value)
    if isinstance(value, str):
        return types.PropertyValue_Text(value)
    if isinstance(value, bytes):
        return types.PropertyValue_Bytes(value)
    if isinstance(value, datetime):
        return types.PropertyValue_Timestamp(_millis(value))
    raise TypeError(f"a property cannot be a {type(value).__name__}")


def _millis(time: Union[datetime, timedelta, int, None]) -> Optional[int]:
    if isinstance(time, datetime):
        time = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    if isinstance(time, timedelta):
        return time // timedelta(milliseconds=1)
    return time


def _time(millis: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=millis)
