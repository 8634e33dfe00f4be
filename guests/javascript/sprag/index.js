// Message handlers for Sprag, in JavaScript. `sprag new --lang javascript` writes a copy of this folder into the new project.
//
//   import { handler, discard, failed, publish } from './sprag/index.js';
//
//   export const { describe, handle } = handler({
//     PaymentRequested(message) {
//       const payment = message.json();
//       if (payment.cents > 50000) throw failed('card-declined', `card of ${payment.customer} was declined`);
//       publish({ entity: 'shipping', eventType: 'ShipmentRequested', json: { order: payment.order } });
//     },
//   });
//
// Nothing that a run publishes or writes to its state takes effect before it has returned, and then everything does, in
// one step with the record that the message is done. So a handler may be run again for the same message.

import * as contextImport from 'sprag:handler/context@0.1.0';
import { write } from 'sprag:handler/log@0.1.0';
import * as outgoing from 'sprag:handler/outgoing@0.1.0';

// What a component exports: one function for each event type; `'*'` takes any type that no other handler names.
export function handler(functions) {
  const eventTypes = Object.keys(functions);
  return {
    describe: () => ({ eventTypes }),
    handle(raw) {
      const message = new Message(raw);
      const run = Object.hasOwn(functions, message.eventType) ? functions[message.eventType] : functions['*'];
      try {
        if (run === undefined) throw failed('no-handler', `this handler takes no ${message.eventType}`);
        return successOf(run(message));
      } catch (error) {
        throw failureOf(error);
      }
    },
  };
}

// A message, as the handler sees it. What is not there is undefined.
export class Message {
  constructor(raw) {
    this.messageId = raw.messageId;
    this.eventId = raw.eventId;
    this.eventType = raw.eventType;
    this.sessionId = raw.sessionId;
    this.correlationId = raw.correlationId;
    this.contentType = raw.contentType;
    this.subject = raw.subject;
    this.replyTo = raw.replyTo;
    this.enqueuedAt = new Date(Number(raw.enqueuedAt));
    // Each with its AMQP type: `[{ name, value: { tag, val } }]`. `property(name)` is simpler.
    this.properties = raw.properties;
    this.body = raw.body;
    this.bodyKind = raw.bodyKind;
  }

  // The body as text.
  text() {
    return new TextDecoder('utf-8', { fatal: true }).decode(this.body);
  }

  // The body, read as JSON. A body that is none can never be handled: it goes to the dead letters as `bad-body`.
  json() {
    try {
      return JSON.parse(this.text());
    } catch (error) {
      throw deadLetter('bad-body', `${this.eventType}: ${error.message}`);
    }
  }

  // The application property of this name, as the nearest JavaScript value; integers past 2^53 are BigInts.
  property(name) {
    const found = this.properties.find((property) => property.name === name);
    if (found === undefined) return undefined;
    const { tag, val } = found.value;
    switch (tag) {
      case 'null':
        return null;
      case 'integer':
      case 'unsigned':
        return Number.isSafeInteger(Number(val)) ? Number(val) : val;
      case 'timestamp':
        return new Date(Number(val));
      default:
        return val;
    }
  }
}

// How a run ends well: return nothing (done), or one of these.

const ended = Symbol('ended');

// Nothing to do with this message. Outcome `skipped`; what the run wrote and published is dropped.
export function discard(reason) {
  return { [ended]: { tag: 'discard', val: reason } };
}

// A system outside goes on with the work and settles it later; the session waits until then.
// `expectedBy`, a Date or milliseconds, is when it fails as `handoff-expired`.
export function handoff(reason, { externalId, expectedBy } = {}) {
  return { [ended]: { tag: 'handoff', val: { reason, externalId, expectedBy: millis(expectedBy) } } };
}

function successOf(value) {
  if (value === undefined || value === null) return { tag: 'done' };
  if (value[ended] !== undefined) return value[ended];
  if (typeof value.then === 'function') throw new TypeError('a handler must not be async: it ends when it returns');
  throw new TypeError('a handler returns nothing, discard(...) or handoff(...)');
}

// How a run does not end well: throw one of these. Any other exception is a failure of the kind `exception`.

// What a handler throws.
export class Failure extends Error {
  constructor(tag, val, text) {
    super(text);
    this.name = 'Failure';
    this.failure = { tag, val };
  }
}

// Not the event's fault: the message is put back and comes again, after `retryAfter` milliseconds at least.
export function transient(text, { retryAfter } = {}) {
  return new Failure('transient', { text, retryAfter: millis(retryAfter) }, text);
}

// The event failed, with a short stable kind that retry rules can name. Its session is blocked.
export function failed(kind, text, { retryAfter } = {}) {
  return new Failure('failed', { kind, text, retryAfter: millis(retryAfter) }, text);
}

// The message can never be handled.
export function deadLetter(reason, text) {
  return new Failure('dead-letter', { reason, text }, text);
}

function failureOf(error) {
  if (error instanceof Failure) return error.failure;
  if (!(error instanceof Error)) return { tag: 'failed', val: { kind: 'exception', text: String(error) } };
  log.error(`${error.name}: ${error.message}\n${error.stack}`);
  return { tag: 'failed', val: { kind: 'exception', text: `${error.name}: ${error.message}` } };
}

// Outgoing messages.

// Holds a message back until the run has succeeded. Answers its id.
//
// `{ entity, eventType, messageId, sessionId, correlationId, contentType, properties, json | body }`: `json` is any value, `body` a text or bytes,
// `properties` an object, or a list of `{ name, value: { tag, val } }` where the AMQP type matters.
export function publish(message) {
  return answered('publish', () => outgoing.publish(outgoingMessage(message)));
}

// The same, to become visible at a Date, or at milliseconds since 1970.
export function schedule(message, at) {
  return answered('publish', () => outgoing.schedule(outgoingMessage(message), millis(at)));
}

function outgoingMessage({ properties = {}, body, json, contentType, ...rest }) {
  const text = json === undefined ? (body ?? '') : JSON.stringify(json);
  return {
    ...rest,
    contentType: contentType ?? (json === undefined ? undefined : 'application/json'),
    properties: Array.isArray(properties)
      ? properties
      : Object.entries(properties).map(([name, value]) => ({ name, value: propertyValue(value) })),
    body: typeof text === 'string' ? new TextEncoder().encode(text) : text,
  };
}

function propertyValue(value) {
  if (value === null) return { tag: 'null' };
  if (value instanceof Date) return { tag: 'timestamp', val: millis(value) };
  if (value instanceof Uint8Array) return { tag: 'bytes', val: value };
  switch (typeof value) {
    case 'boolean':
      return { tag: 'boolean', val: value };
    case 'bigint':
      return value < 2n ** 63n ? { tag: 'integer', val: value } : { tag: 'unsigned', val: value };
    case 'number':
      return Number.isSafeInteger(value) ? { tag: 'integer', val: BigInt(value) } : { tag: 'float', val: value };
    case 'string':
      return { tag: 'text', val: value };
    default:
      throw new TypeError(`a property cannot be a ${typeof value}`);
  }
}

// Where and how this run takes place, and the host's log.

export const context = {
  // The endpoint's configured name.
  endpoint: () => contextImport.endpoint(),
  // The handler's configured name.
  handler: () => contextImport.handler(),
  // Which run of this event this is, counted from 1.
  attempt: () => contextImport.attempt(),
  // Milliseconds that are left before the run is stopped as `timeout`.
  remaining: () => Number(contextImport.remaining()),
  // W3C trace context of the message: `{ traceparent, tracestate }` or undefined.
  trace: () => contextImport.trace(),
};

// Lines for the host's log; they carry the message's ids by themselves.
export const log = {
  debug: (text) => write('debug', String(text)),
  info: (text) => write('info', String(text)),
  warn: (text) => write('warn', String(text)),
  error: (text) => write('error', String(text)),
};

// Runs a host call and turns the error it answers into a Failure, with the answer as `cause`: `{ tag, val }`.
export function answered(what, call) {
  try {
    return call();
  } catch (error) {
    const answer = error?.payload;
    if (answer === undefined) throw error;
    const text = answer.val ?? `${what}: ${answer.tag}`;
    const failure = answer.tag === 'unavailable' ? transient(text) : failed(`${what}-${answer.tag}`, text);
    failure.cause = answer;
    throw failure;
  }
}

function millis(time) {
  return time === undefined || time === null ? undefined : BigInt(Math.trunc(Number(time)));
}
