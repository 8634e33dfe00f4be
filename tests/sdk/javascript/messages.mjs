// What npm @azure/service-bus can do with queues, topics, sessions and rules, against a broker whose connection string is in SPRAG_SERVICEBUS.
// The entities are those of tests/sdk/entities. Every scenario leaves its entities empty.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { connection, end, fails, scenario, sleep } from "./scenario.mjs";

const require = createRequire(import.meta.url);
const { ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");

const client = new ServiceBusClient(connection);
const impatient = new ServiceBusClient(connection, { retryOptions: { maxRetries: 0, timeoutInMs: 3_000 } });
const plain = client.createSender("plain");
const queue = client.createReceiver("plain");

const later = (milliseconds) => new Date(Date.now() + milliseconds);
const range = (count) => Array.from({ length: count }, (_, n) => n);
const bodies = (messages) => messages.map((message) => message.body);
const all = { fromSequenceNumber: Long.ONE };

async function receive(receiver, count, wait = 5_000) {
  const got = [];
  const until = Date.now() + wait;
  while (got.length < count && Date.now() < until) {
    got.push(...(await receiver.receiveMessages(count - got.length, { maxWaitTimeInMs: 1_000 })));
  }
  assert.equal(got.length, count);
  return got;
}

async function nothing(receiver) {
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
}

// Nothing is left, in whatever state.
async function empty(receiver) {
  assert.deepEqual(bodies(await receiver.peekMessages(10, all)), []);
}

async function using(receiver, action) {
  try {
    return await action(receiver);
  } finally {
    // Not every handler has something to close.
    await receiver.close?.();
  }
}

const dead = (...entity) => client.createReceiver(...entity, { subQueueType: "deadLetter" });
const deleting = (...entity) => client.createReceiver(...entity, { receiveMode: "receiveAndDelete" });

await scenario("send one message and complete it", async () => {
  await plain.sendMessages({ body: "hello", messageId: "m1" });
  const [message] = await receive(queue, 1);
  assert.deepEqual([message.body, message.messageId, message.deliveryCount], ["hello", "m1", 0]);
  assert(message.lockedUntilUtc > new Date() && message.lockToken);
  await queue.completeMessage(message);
  await empty(queue);
});

await scenario("every field of a message arrives", async () => {
  const sent = {
    body: { a: [1, "b", null] },
    messageId: "id",
    subject: "subject",
    correlationId: "correlation",
    contentType: "application/json",
    to: "to",
    replyTo: "reply",
    replyToSessionId: "reply session",
    partitionKey: "key",
    timeToLive: 300_000,
    applicationProperties: { text: "x", int: 7, float: 1.5, yes: true, none: null },
  };
  await plain.sendMessages(sent);
  const [got] = await receive(queue, 1);
  for (const field of ["messageId", "subject", "correlationId", "contentType", "to", "replyTo", "replyToSessionId", "partitionKey", "timeToLive"]) {
    assert.equal(got[field], sent[field], field);
  }
  assert.deepEqual(got.body, sent.body);
  assert.deepEqual(got.applicationProperties, sent.applicationProperties);
  assert(got.sequenceNumber.greaterThan(0) && got.enqueuedTimeUtc <= later(1_000) && got.expiresAtUtc > later(0));
  await queue.completeMessage(got);
});

await scenario("ids that are numbers and buffers keep their types", async () => {
  for (const id of [42, Buffer.from(range(16))]) {
    await plain.sendMessages({ body: "typed", messageId: id, correlationId: id });
    const [got] = await receive(queue, 1);
    assert.deepEqual(got.messageId, id);
    assert.deepEqual(got.correlationId, id);
    await queue.completeMessage(got);
  }
});

await scenario("raw AMQP messages: value, sequence and data bodies, header, annotations, footer", async () => {
  for (const [bodyType, body] of [["value", { a: [1, "b"] }], ["sequence", [1, "x"]], ["data", Buffer.from("bytes")]]) {
    await plain.sendMessages({
      body,
      bodyType,
      header: { priority: 7, durable: true },
      messageAnnotations: { mine: "annotation" },
      footer: { foot: "note" },
      applicationProperties: { p: 1 },
      properties: { messageId: "raw", groupSequence: 5 },
    });
    const [got] = await receive(queue, 1);
    const raw = got._rawAmqpMessage;
    assert.equal(raw.bodyType, bodyType);
    assert.deepEqual(got.body, body);
    assert.deepEqual([raw.header.priority, raw.header.durable], [7, true]);
    assert.equal(raw.messageAnnotations.mine, "annotation");
    assert.equal(raw.footer.foot, "note");
    assert.equal(raw.properties.groupSequence, 5);
    await queue.completeMessage(got);
  }
});

await scenario("an array is sent as a batch, in order", async () => {
  await plain.sendMessages(range(50).map((n) => ({ body: n })));
  const got = await receive(queue, 50);
  assert.deepEqual(bodies(got), range(50));
  await Promise.all(got.map((message) => queue.completeMessage(message)));
  await empty(queue);
});

await scenario("a batch object takes what fits", async () => {
  const batch = await plain.createMessageBatch();
  while (batch.tryAddMessage({ body: Buffer.alloc(1_000) }));
  await plain.sendMessages(batch);
  await using(deleting("plain"), (receiver) => receive(receiver, batch.count, 30_000));
  await empty(queue);
  return `${batch.count} in ${batch.sizeInBytes} of ${batch.maxSizeInBytes} bytes`;
});

await scenario("a large message over many frames", async () => {
  const large = Buffer.from(range(5_000_000).map((n) => n % 251));
  const sender = client.createSender("large");
  await sender.sendMessages({ body: large });
  await using(client.createReceiver("large"), async (receiver) => {
    const [message] = await receive(receiver, 1, 20_000);
    assert(large.equals(message.body));
    await receiver.completeMessage(message);
  });
  await sender.close();
});

await scenario("a message that is too large is refused, and the sender goes on", async () => {
  const sender = impatient.createSender("small");
  await fails("MessageSizeExceeded", () => sender.sendMessages({ body: Buffer.alloc(5_000) }));
  await sender.sendMessages({ body: Buffer.alloc(100) });
  await using(deleting("small"), (receiver) => receive(receiver, 1));
  await sender.close();
});

await scenario("abandon: it comes again, counted, with properties modified", async () => {
  await plain.sendMessages({ body: "again", applicationProperties: { kept: 1, changed: 1 } });
  const [first] = await receive(queue, 1);
  await queue.abandonMessage(first, { changed: 2, added: "x" });
  const [second] = await receive(queue, 1);
  assert.equal(second.deliveryCount, 1);
  assert.deepEqual(second.applicationProperties, { kept: 1, changed: 2, added: "x" });
  await queue.completeMessage(second);
  await empty(queue);
});

await scenario("dead-letter with reason, description and properties, and the dead letters received", async () => {
  await plain.sendMessages({ body: "bad" });
  const [message] = await receive(queue, 1);
  await queue.deadLetterMessage(message, { deadLetterReason: "why", deadLetterErrorDescription: "because", step: "third" });
  await using(dead("plain"), async (receiver) => {
    assert.equal((await receiver.peekMessages(5))[0].deadLetterReason, "why");
    const [letter] = await receive(receiver, 1);
    assert.deepEqual([letter.body, letter.deadLetterReason, letter.deadLetterErrorDescription], ["bad", "why", "because"]);
    assert.equal(letter.applicationProperties.step, "third");
    await receiver.completeMessage(letter);
    await empty(receiver);
  });
  await empty(queue);
});

await scenario("transfer dead letters are there and empty", async () => {
  await using(client.createReceiver("plain", { subQueueType: "transferDeadLetter" }), async (receiver) => {
    await nothing(receiver);
    await empty(receiver);
  });
});

await scenario("defer, receive by number, complete, abandon and dead-letter what was deferred", async () => {
  await plain.sendMessages(range(3).map((n) => ({ body: n })));
  const numbers = [];
  for (const message of await receive(queue, 3)) {
    numbers.push(message.sequenceNumber);
    await queue.deferMessage(message, { deferred: true });
  }
  await nothing(queue);
  assert.deepEqual((await queue.peekMessages(5, all)).map((m) => m.state), ["deferred", "deferred", "deferred"]);
  const [one, two, three] = await queue.receiveDeferredMessages(numbers);
  assert.deepEqual([one.body, one.state, one.applicationProperties.deferred], [0, "deferred", true]);
  assert((await queue.renewMessageLock(one)) > new Date());
  await queue.completeMessage(one);
  await queue.abandonMessage(two, { twice: 1 });
  const [again] = await queue.receiveDeferredMessages(numbers[1]);
  assert.equal(again.applicationProperties.twice, 1);
  await queue.completeMessage(again);
  await queue.deadLetterMessage(three, { deadLetterReason: "deferred" });
  await using(dead("plain"), async (receiver) => {
    const [letter] = await receive(receiver, 1);
    assert.equal(letter.deadLetterReason, "deferred");
    await receiver.completeMessage(letter);
  });
  await fails("MessageNotFound", () => queue.receiveDeferredMessages(numbers[0]));
  await empty(queue);
});

await scenario("deferred messages received and deleted", async () => {
  await plain.sendMessages({ body: "once" });
  const [message] = await receive(queue, 1);
  await queue.deferMessage(message);
  await using(deleting("plain"), async (receiver) => {
    assert.deepEqual(bodies(await receiver.receiveDeferredMessages(message.sequenceNumber)), ["once"]);
  });
  await empty(queue);
});

await scenario("schedule, peek as scheduled, receive when it is due", async () => {
  const [number] = await plain.scheduleMessages({ body: "due" }, later(2_000));
  const [seen] = await queue.peekMessages(5, all);
  assert.deepEqual([seen.state, seen.sequenceNumber.toString()], ["scheduled", number.toString()]);
  const began = Date.now();
  const [message] = await receive(queue, 1);
  assert(Date.now() - began > 500 && Date.now() - began < 4_000);
  assert.equal(message.enqueuedSequenceNumber, number.toNumber());
  await queue.completeMessage(message);
});

await scenario("schedule by the message's own property, several at once, and cancel", async () => {
  await plain.sendMessages({ body: "own", scheduledEnqueueTimeUtc: later(60_000) });
  const numbers = await plain.scheduleMessages([{ body: "a" }, { body: "b" }], later(60_000));
  const seen = await queue.peekMessages(5, all);
  assert.deepEqual(bodies(seen), ["own", "a", "b"]);
  await plain.cancelScheduledMessages(numbers);
  await plain.cancelScheduledMessages(seen[0].sequenceNumber);
  await using(impatient.createSender("plain"), (sender) =>
    fails("MessageNotFound", () => sender.cancelScheduledMessages(numbers[0])),
  );
  await empty(queue);
});

await scenario("peek goes on where it was, and from a number", async () => {
  await plain.sendMessages(range(5).map((n) => ({ body: n })));
  await using(client.createReceiver("plain"), async (receiver) => {
    assert.deepEqual(bodies(await receiver.peekMessages(2)), [0, 1]);
    const rest = await receiver.peekMessages(9);
    assert.deepEqual(bodies(rest), [2, 3, 4]);
    assert.deepEqual(bodies(await receiver.peekMessages(1, { fromSequenceNumber: rest[1].sequenceNumber })), [3]);
  });
  await using(deleting("plain"), (receiver) => receive(receiver, 5));
  await empty(queue);
});

await scenario("an empty receive drains in time, and the link goes on", async () => {
  const began = Date.now();
  assert.deepEqual(await queue.receiveMessages(10, { maxWaitTimeInMs: 1_000 }), []);
  assert(Date.now() - began < 3_000);
  await plain.sendMessages({ body: "after" });
  const [message] = await receive(queue, 1);
  await queue.completeMessage(message);
});

await scenario("receive five where two are", async () => {
  await plain.sendMessages([{ body: 1 }, { body: 2 }]);
  const got = await queue.receiveMessages(5, { maxWaitTimeInMs: 3_000 });
  assert.deepEqual(bodies(got), [1, 2]);
  for (const message of got) await queue.completeMessage(message);
});

await scenario("subscribe: many at a time, completed by themselves", async () => {
  await plain.sendMessages(range(200).map((n) => ({ body: n })));
  await using(client.createReceiver("plain"), async (receiver) => {
    const seen = new Set();
    const problems = [];
    const subscription = receiver.subscribe(
      { processMessage: async (message) => void seen.add(message.body), processError: async ({ error }) => void problems.push(error) },
      { maxConcurrentCalls: 16 },
    );
    for (let n = 0; n < 200 && seen.size < 200; n++) await sleep(50);
    await subscription.close();
    assert.equal(seen.size, 200);
    assert.deepEqual(problems, []);
  });
  await empty(queue);
});

await scenario("iterate", async () => {
  await plain.sendMessages(range(20).map((n) => ({ body: n })));
  await using(client.createReceiver("plain"), async (receiver) => {
    let count = 0;
    for await (const message of receiver.getMessageIterator()) {
      await receiver.completeMessage(message);
      if (++count === 20) break;
    }
  });
  await empty(queue);
});

await scenario("a lock is renewed by itself beyond its time", async () => {
  const sender = client.createSender("brief");
  await sender.sendMessages({ body: "held" });
  await using(client.createReceiver("brief", { maxAutoLockRenewalDurationInMs: 30_000 }), async (receiver) => {
    const [message] = await receive(receiver, 1);
    await sleep(4_000);
    await nothing(receiver);
    await receiver.completeMessage(message);
    await empty(receiver);
  });
  await sender.close();
});

await scenario("a lock that lapsed: nothing is settled, and the message comes again", async () => {
  const sender = client.createSender("brief");
  await sender.sendMessages({ body: "slow" });
  await using(client.createReceiver("brief", { maxAutoLockRenewalDurationInMs: 0 }), async (receiver) => {
    const [message] = await receive(receiver, 1);
    await sleep(2_500);
    await fails("MessageLockLost", () => receiver.completeMessage(message));
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    await receiver.completeMessage(again);
    await empty(receiver);
  });
  await sender.close();
});

await scenario("after too many deliveries it is a dead letter", async () => {
  const sender = client.createSender("brief");
  await sender.sendMessages({ body: "poison" });
  await using(client.createReceiver("brief"), async (receiver) => {
    for (let n = 0; n < 3; n++) await receiver.abandonMessage((await receive(receiver, 1))[0]);
    await nothing(receiver);
  });
  await using(dead("brief"), async (receiver) => {
    const [letter] = await receive(receiver, 1);
    assert.equal(letter.deadLetterReason, "MaxDeliveryCountExceeded");
    await receiver.completeMessage(letter);
  });
  await sender.close();
});

await scenario("time to live: of the message, and of the queue into the dead letters", async () => {
  await plain.sendMessages({ body: "brief", timeToLive: 200 });
  await sleep(600);
  await nothing(queue);
  await using(client.createSender("mortal"), (sender) => sender.sendMessages({ body: "expires" }));
  await using(dead("mortal"), async (receiver) => {
    const [letter] = await receive(receiver, 1);
    assert.equal(letter.deadLetterReason, "TTLExpiredException");
    await receiver.completeMessage(letter);
  });
});

await scenario("duplicates are dropped", async () => {
  await using(client.createSender("unique"), async (sender) => {
    for (let n = 0; n < 3; n++) await sender.sendMessages({ body: "once", messageId: "js the same" });
    await sender.sendMessages([{ body: "once", messageId: "js the same" }, { body: "other", messageId: "js another" }]);
  });
  await using(client.createReceiver("unique"), async (receiver) => {
    const got = await receive(receiver, 2);
    assert.deepEqual(bodies(got), ["once", "other"]);
    for (const message of got) await receiver.completeMessage(message);
    await empty(receiver);
  });
});

await scenario("forwarding", async () => {
  await using(client.createSender("forwarding"), (sender) => sender.sendMessages({ body: "passed on" }));
  const [message] = await receive(queue, 1);
  assert.equal(message.body, "passed on");
  await queue.completeMessage(message);
});

await scenario("what is not there, and what may not be", async () => {
  await using(impatient.createSender("no such queue"), (sender) =>
    fails("MessagingEntityNotFound", () => sender.sendMessages({ body: "x" })),
  );
  await using(impatient.createReceiver("no such queue"), (receiver) =>
    fails("MessagingEntityNotFound", () => receiver.receiveMessages(1, { maxWaitTimeInMs: 500 })),
  );
  // A session entity is not received from without a session, nor sent to without one.
  await using(impatient.createReceiver("sessions"), (receiver) =>
    assert.rejects(receiver.receiveMessages(1, { maxWaitTimeInMs: 500 })),
  );
  await using(impatient.createSender("sessions"), async (sender) => {
    await assert.rejects(sender.sendMessages({ body: "no session" }));
    await sender.sendMessages({ body: "with one", sessionId: "s" });
  });
  await empties("s");
  await assert.rejects(impatient.acceptSession("plain", "s"));
});

const sessions = client.createSender("sessions");

async function fill(session, count = 3) {
  await sessions.sendMessages(range(count).map((n) => ({ body: `${session}${n}`, sessionId: session })));
}

async function empties(session) {
  await using(await client.acceptSession("sessions", session, { receiveMode: "receiveAndDelete" }), async (receiver) => {
    while ((await receiver.receiveMessages(10, { maxWaitTimeInMs: 500 })).length > 0);
  });
}

await scenario("a session by name: order, state, renewal", async () => {
  await fill("A");
  await using(await client.acceptSession("sessions", "A"), async (session) => {
    assert.equal(session.sessionId, "A");
    assert(session.sessionLockedUntilUtc > new Date());
    assert.equal(await session.getSessionState(), null);
    await session.setSessionState(Buffer.from("one"));
    assert.equal(String(await session.getSessionState()), "one");
    assert((await session.renewSessionLock()) > new Date());
    const got = await receive(session, 3);
    assert.deepEqual(bodies(got), ["A0", "A1", "A2"]);
    for (const message of got) await session.completeMessage(message);
  });
  await using(await client.acceptSession("sessions", "A"), async (session) => {
    assert.equal(String(await session.getSessionState()), "one");
    await session.setSessionState(null);
    assert.equal(await session.getSessionState(), null);
  });
});

await scenario("the next session, and none", async () => {
  await fill("N");
  await using(await client.acceptNextSession("sessions"), async (session) => {
    assert.equal(session.sessionId, "N");
    for (const message of await receive(session, 3)) await session.completeMessage(message);
  });
  await fails("ServiceTimeout", () => impatient.acceptNextSession("sessions"));
});

await scenario("a session that comes while somebody waits for it", async () => {
  const waiting = client.acceptNextSession("sessions");
  await sleep(500);
  await fill("late", 1);
  await using(await waiting, async (session) => {
    assert.equal(session.sessionId, "late");
    await session.completeMessage((await receive(session, 1))[0]);
  });
});

await scenario("a session held elsewhere, and given back when its holder closes", async () => {
  await fill("H", 1);
  await using(await client.acceptSession("sessions", "H"), () =>
    fails("SessionCannotBeLocked", () => impatient.acceptSession("sessions", "H")),
  );
  await empties("H");
});

await scenario("abandoned in a session, it comes again in its place", async () => {
  await fill("O");
  await using(await client.acceptSession("sessions", "O"), async (session) => {
    const [first] = await receive(session, 1);
    await session.abandonMessage(first);
    const got = await receive(session, 3);
    assert.deepEqual(bodies(got), ["O0", "O1", "O2"]);
    for (const message of got) await session.completeMessage(message);
  });
});

await scenario("deferred in a session", async () => {
  await fill("D", 2);
  await using(await client.acceptSession("sessions", "D"), async (session) => {
    const [first, second] = await receive(session, 2);
    await session.deferMessage(first);
    await session.completeMessage(second);
    assert.equal((await session.peekMessages(5, all))[0].state, "deferred");
    const [again] = await session.receiveDeferredMessages(first.sequenceNumber);
    await session.completeMessage(again);
  });
});

await scenario("a session's lock lapses: its holder is told, the next one has it", async () => {
  await using(client.createSender("brief-sessions"), (sender) => sender.sendMessages({ body: "x", sessionId: "L" }));
  await using(await client.acceptSession("brief-sessions", "L", { maxAutoLockRenewalDurationInMs: 0 }), async (first) => {
    const [message] = await receive(first, 1);
    await sleep(2_500);
    await fails("SessionLockLost", () => first.completeMessage(message));
    await fails("SessionLockLost", () => first.getSessionState());
  });
  await using(await client.acceptSession("brief-sessions", "L"), async (second) => {
    await second.completeMessage((await receive(second, 1))[0]);
  });
});

await scenario("a session is renewed by itself beyond its time", async () => {
  await using(client.createSender("brief-sessions"), (sender) => sender.sendMessages({ body: "x", sessionId: "R" }));
  await using(await client.acceptSession("brief-sessions", "R", { maxAutoLockRenewalDurationInMs: 30_000 }), async (session) => {
    const [message] = await receive(session, 1);
    await sleep(4_000);
    await session.completeMessage(message);
  });
});

await scenario("many sessions at a time", async () => {
  const names = range(10).map((n) => `many-${n}`);
  for (const name of names) await fill(name, 1);
  const taken = await Promise.all(names.map(() => client.acceptNextSession("sessions")));
  assert.deepEqual(taken.map((session) => session.sessionId).sort(), names);
  for (const session of taken) {
    await session.completeMessage((await receive(session, 1))[0]);
    await session.close();
  }
});

await scenario("a session that is subscribed to", async () => {
  await fill("S", 20);
  await using(await client.acceptSession("sessions", "S"), async (session) => {
    const seen = [];
    const subscription = session.subscribe({
      processMessage: async (message) => void seen.push(message.body),
      processError: async ({ error }) => void seen.push(error),
    });
    for (let n = 0; n < 200 && seen.length < 20; n++) await sleep(50);
    await subscription.close();
    assert.deepEqual(seen, range(20).map((n) => `S${n}`));
    await empty(session);
  });
});

await scenario("a topic: each subscription what its filter lets through", async () => {
  await using(client.createSender("shop"), async (topic) => {
    await topic.sendMessages(["red", "blue"].map((colour) => ({ body: colour, applicationProperties: { colour } })));
    await topic.cancelScheduledMessages(await topic.scheduleMessages({ body: "never" }, later(60_000)));
  });
  await using(client.createReceiver("shop", "all"), async (every) => {
    const [red, blue] = await receive(every, 2);
    assert.deepEqual([red.body, blue.body], ["red", "blue"]);
    await every.completeMessage(red);
    await every.deadLetterMessage(blue, { deadLetterReason: "blue" });
  });
  await using(client.createReceiver("shop", "red"), async (receiver) => {
    const [message] = await receive(receiver, 1);
    assert.equal(message.body, "red");
    await receiver.completeMessage(message);
    await nothing(receiver);
  });
  await using(dead("shop", "all"), async (receiver) => {
    const [letter] = await receive(receiver, 1);
    assert.deepEqual([letter.body, letter.deadLetterReason], ["blue", "blue"]);
    await receiver.completeMessage(letter);
  });
  await using(deleting("shop", "ruled"), async (receiver) => {
    while ((await receiver.receiveMessages(10, { maxWaitTimeInMs: 500 })).length > 0);
  });
});

await scenario("rules: listed, added, removed, obeyed", async () => {
  await using(client.createRuleManager("shop", "ruled"), async (rules) => {
    assert.deepEqual((await rules.getRules()).map(({ name, filter }) => [name, filter.sqlExpression]), [["$Default", "1=1"]]);
    await rules.createRule("cheap", { sqlExpression: "price < 10" }, { sqlExpression: "SET label = 'cheap'" });
    await rules.createRule("exact", { correlationId: "c", subject: "s", applicationProperties: { colour: "green", size: 7 } });
    await rules.deleteRule("$Default");
    await assert.rejects(rules.createRule("cheap", { sqlExpression: "1=1" }));
    await assert.rejects(rules.createRule("wrong", { sqlExpression: "price <" }));
    await assert.rejects(rules.deleteRule("no such rule"));
    const listed = (await rules.getRules()).sort((one, other) => one.name.localeCompare(other.name));
    assert.deepEqual(listed.map(({ name }) => name), ["cheap", "exact"]);
    assert.deepEqual(listed[0].filter, { sqlExpression: "price < 10" });
    assert.deepEqual(listed[0].action, { sqlExpression: "SET label = 'cheap'" });
    assert.equal(listed[1].filter.correlationId, "c");
    assert.equal(listed[1].filter.subject, "s");
    assert.equal(listed[1].filter.applicationProperties.colour, "green");
    assert.equal(Number(listed[1].filter.applicationProperties.size), 7);

    await using(client.createSender("shop"), (topic) =>
      topic.sendMessages([
        { body: "dear", applicationProperties: { price: 100 } },
        { body: "cheap", applicationProperties: { price: 1 } },
        { body: "green", correlationId: "c", subject: "s", applicationProperties: { colour: "green", size: 7 } },
      ]),
    );
    await using(deleting("shop", "ruled"), async (receiver) => {
      const got = await receive(receiver, 2);
      assert.deepEqual(bodies(got), ["cheap", "green"]);
      assert.equal(got[0].applicationProperties.label ?? got[0].subject, "cheap");
    });
    await rules.deleteRule("cheap");
    await rules.deleteRule("exact");
    await rules.createRule("$Default", { sqlExpression: "1=1" });
  });
  await using(deleting("shop", "all"), (receiver) => receive(receiver, 3));
});

await scenario("a subscription with sessions", async () => {
  await using(client.createSender("orders"), (topic) => topic.sendMessages(range(3).map((n) => ({ body: n, sessionId: "T" }))));
  await using(await client.acceptSession("orders", "billing", "T"), async (session) => {
    const got = await receive(session, 3);
    assert.deepEqual(bodies(got), [0, 1, 2]);
    for (const message of got) await session.completeMessage(message);
  });
});

await scenario("close", async () => {
  for (const handler of [plain, queue, sessions, client, impatient]) await handler.close();
});

end();
