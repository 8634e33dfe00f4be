// The guest conformance handler in JavaScript. What it does is said in `../README.md`.

import * as sprag from './sprag/index.js';
import * as config from './sprag/config.js';
import * as state from './sprag/state.js';

export const { describe, handle } = sprag.handler({
  Conformance(message) {
    const command = read(message);
    const results = (command.steps ?? []).map((step) => run(step, message));
    if (typeof command.report === 'string') {
      sprag.publish({ entity: command.report, eventType: 'Report', json: { results } });
    }
    return end(command.end ?? { as: 'done' });
  },
});

function read(message) {
  let command;
  try {
    command = JSON.parse(message.property('command') ?? message.text());
  } catch (error) {
    throw bad(error.message);
  }
  if (typeof command !== 'object' || command === null) throw bad('a command is an object');
  return command;
}

function bad(text) {
  return sprag.deadLetter('bad-body', text);
}

function run(step, message) {
  switch (step.op) {
    case 'echo':
      return echo(message);
    case 'context':
      return {
        endpoint: sprag.context.endpoint(),
        handler: sprag.context.handler(),
        attempt: sprag.context.attempt(),
        remaining: sprag.context.remaining(),
        trace: traceOf(sprag.context.trace()),
      };
    case 'log':
      sprag.log[step.level](step.text);
      return null;
    case 'publish':
      return answer(() => sprag.publish(outgoing(step)));
    case 'schedule':
      return answer(() => sprag.schedule(outgoing(step), step.at));
    case 'state-get':
      return answer(() => state.getText(step.key) ?? null);
    case 'state-set':
      return answer(() => state.set(step.key, step.value) ?? null);
    case 'state-delete':
      return answer(() => state.remove(step.key) ?? null);
    case 'state-cas':
      return answer(() => state.compareAndSet(step.key, step.expected ?? undefined, step.value ?? undefined));
    case 'state-scan':
      return answer(() =>
        state
          .scan(step.prefix, { after: step.after ?? undefined, limit: step.limit })
          .map(({ key, value }) => [key, new TextDecoder().decode(value)]),
      );
    case 'config-get':
      return config.get(step.key) ?? null;
    case 'config-all':
      return config.all().sort(([a], [b]) => (a < b ? -1 : 1));
    default:
      throw bad(`no such op: ${step.op}`);
  }
}

// The result of a host call: what it answers, or the name of the error it answers.
function answer(call) {
  try {
    return { ok: call() };
  } catch (error) {
    if (error.cause?.tag === undefined) throw error;
    return { error: error.cause.tag };
  }
}

function traceOf(trace) {
  return trace === undefined ? null : { traceparent: trace.traceparent, tracestate: trace.tracestate ?? null };
}

function echo(message) {
  const { tag, val } = message.bodyKind;
  return {
    message_id: message.messageId ?? null,
    event_id: message.eventId,
    event_type: message.eventType,
    session_id: message.sessionId ?? null,
    correlation_id: message.correlationId ?? null,
    content_type: message.contentType ?? null,
    subject: message.subject ?? null,
    reply_to: message.replyTo ?? null,
    enqueued_at: message.enqueuedAt.getTime(),
    properties: message.properties.map(showProperty),
    body: hex(message.body),
    body_kind: tag === 'sections' ? { sections: Array.from(val, Number) } : tag,
  };
}

function showProperty({ name, value: { tag, val } }) {
  const shown = { null: () => null, bytes: hex, integer: String, unsigned: String, timestamp: String }[tag];
  return { name, type: tag, value: shown === undefined ? val : shown(val) };
}

function outgoing(step) {
  return {
    entity: step.entity,
    eventType: step.event_type,
    messageId: step.message_id,
    sessionId: step.session_id,
    correlationId: step.correlation_id,
    contentType: step.content_type,
    properties: (step.properties ?? []).map(({ name, type, value }) => ({ name, value: readValue(type, value) })),
    body: step.body ?? '',
  };
}

function readValue(type, value) {
  switch (type) {
    case 'null':
      return { tag: 'null' };
    case 'integer':
    case 'unsigned':
    case 'timestamp':
      return { tag: type, val: BigInt(value) };
    case 'bytes':
      return { tag: 'bytes', val: Uint8Array.from(value.match(/../g) ?? [], (pair) => parseInt(pair, 16)) };
    case 'boolean':
    case 'float':
    case 'text':
    case 'uuid':
      return { tag: type, val: value };
    default:
      throw bad(`no such property type: ${type}`);
  }
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function end(ending) {
  const retryAfter = ending.retry_after ?? undefined;
  switch (ending.as) {
    case 'done':
      return undefined;
    case 'discard':
      return sprag.discard(ending.reason);
    case 'handoff':
      return sprag.handoff(ending.reason, {
        externalId: ending.external_id ?? undefined,
        expectedBy: ending.expected_by ?? undefined,
      });
    case 'transient':
      throw sprag.transient(ending.text, { retryAfter });
    case 'failed':
      throw sprag.failed(ending.kind, ending.text, { retryAfter });
    case 'dead-letter':
      throw sprag.deadLetter(ending.reason, ending.text);
    case 'exception':
      throw new Error(ending.text);
    default:
      throw bad(`no such end: ${ending.as}`);
  }
}
