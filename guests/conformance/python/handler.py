"""The guest conformance handler in Python. What it does is said in `../README.md`."""

import json

import sprag
from sprag import WitWorld, config, context, dead_letter, log, on, state  # noqa: F401 (WitWorld is what is exported)
from wit_world.imports import types

PROPERTY_TYPES = {
    "null": types.PropertyValue_Null,
    "boolean": types.PropertyValue_Boolean,
    "integer": types.PropertyValue_Integer,
    "unsigned": types.PropertyValue_Unsigned,
    "float": types.PropertyValue_Float,
    "text": types.PropertyValue_Text,
    "bytes": types.PropertyValue_Bytes,
    "timestamp": types.PropertyValue_Timestamp,
    "uuid": types.PropertyValue_Uuid,
}
NAMES = {made: name for name, made in PROPERTY_TYPES.items()}


@on("Conformance")
def conformance(message):
    command = read(message)
    results = [run(step, message) for step in command.get("steps", [])]
    if isinstance(command.get("report"), str):
        sprag.publish(command["report"], "Report", json={"results": results})
    return end(command.get("end") or {"as": "done"})


def read(message):
    text = message.property("command") or message.body
    try:
        command = json.loads(text)
    except ValueError as error:
        raise dead_letter("bad-body", str(error)) from error
    if not isinstance(command, dict):
        raise dead_letter("bad-body", "a command is an object")
    return command


def run(step, message):
    match step["op"]:
        case "echo":
            return echo(message)
        case "context":
            trace = context.trace()
            return {
                "endpoint": context.endpoint(),
                "handler": context.handler(),
                "attempt": context.attempt(),
                "remaining": context.remaining(),
                "trace": trace and {"traceparent": trace.traceparent, "tracestate": trace.tracestate},
            }
        case "log":
            return getattr(log, step["level"])(step["text"])
        case "publish":
            return answer(lambda: publish(step))
        case "schedule":
            return answer(lambda: publish(step, at=step["at"]))
        case "state-get":
            return answer(lambda: text(state.get(step["key"])))
        case "state-set":
            return answer(lambda: state.set(step["key"], step["value"]))
        case "state-delete":
            return answer(lambda: state.delete(step["key"]))
        case "state-cas":
            return answer(lambda: state.compare_and_set(step["key"], step.get("expected"), step.get("value")))
        case "state-scan":
            return answer(
                lambda: [
                    [key, text(value)] for key, value in state.scan(step["prefix"], step.get("after"), step["limit"])
                ]
            )
        case "config-get":
            return config.get(step["key"])
        case "config-all":
            return sorted(config.all().items())
        case other:
            raise dead_letter("bad-body", f"no such op: {other}")


def answer(call):
    """The result of a host call: what it answers, or the name of the error it answers."""
    try:
        return {"ok": call()}
    except (sprag.PublishFailed, state.StateFailed) as failure:
        return {"error": failure.error}


def text(value):
    return None if value is None else value.decode()


def echo(message):
    kind = message.body_kind
    return {
        "message_id": message.message_id,
        "event_id": message.event_id,
        "event_type": message.event_type,
        "session_id": message.session_id,
        "correlation_id": message.correlation_id,
        "content_type": message.content_type,
        "subject": message.subject,
        "reply_to": message.reply_to,
        "enqueued_at": round(message.enqueued_at.timestamp() * 1000),
        "properties": [show_property(property) for property in message.properties],
        "body": message.body.hex(),
        "body_kind": {"sections": list(kind.value)}
        if isinstance(kind, types.BodyKind_Sections)
        else {types.BodyKind_None_: "none", types.BodyKind_Data: "data", types.BodyKind_Value: "value"}[type(kind)],
    }


def show_property(property):
    kind = NAMES[type(property.value)]
    value = None if kind == "null" else property.value.value
    if kind in ("integer", "unsigned", "timestamp"):
        value = str(value)
    if kind == "bytes":
        value = value.hex()
    return {"name": property.name, "type": kind, "value": value}


def publish(step, at=None):
    return sprag.publish(
        step["entity"],
        step["event_type"],
        body=step.get("body", ""),
        at=at,
        message_id=step.get("message_id"),
        session_id=step.get("session_id"),
        correlation_id=step.get("correlation_id"),
        content_type=step.get("content_type"),
        properties=[read_property(property) for property in step.get("properties", [])],
    )


def read_property(property):
    made = PROPERTY_TYPES.get(property["type"])
    if made is None:
        raise dead_letter("bad-body", f"no such property type: {property['type']}")
    value = property.get("value")
    match property["type"]:
        case "null":
            return sprag.Property(property["name"], made())
        case "integer" | "unsigned" | "timestamp":
            value = int(value)
        case "bytes":
            value = bytes.fromhex(value)
    return sprag.Property(property["name"], made(value))


def end(ending):
    match ending["as"]:
        case "done":
            return None
        case "discard":
            return sprag.discard(ending["reason"])
        case "handoff":
            return sprag.handoff(ending["reason"], ending.get("external_id"), ending.get("expected_by"))
        case "transient":
            raise sprag.transient(ending["text"], ending.get("retry_after"))
        case "failed":
            raise sprag.failed(ending["kind"], ending["text"], ending.get("retry_after"))
        case "dead-letter":
            raise dead_letter(ending["reason"], ending["text"])
        case "exception":
            raise RuntimeError(ending["text"])
        case other:
            raise dead_letter("bad-body", f"no such end: {other}")
