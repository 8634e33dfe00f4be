// Scenarios of the administration client of npm @azure/service-bus (7.9.5), as its users write them.
//
// SPRAG_ADMINISTRATION is host:port of the API. The client of this version always speaks HTTPS, also with UseDevelopmentEmulator=true; so a
// policy of its pipeline makes it HTTP, and that is the only change. With SPRAG_ADMINISTRATION_TLS=1 not even that: the API is behind TLS, and
// NODE_EXTRA_CA_CERTS names who is to be trusted. SPRAG_ADMINISTRATION_KEY is the key when it is not the emulator's. One line per scenario; exits
// with 1 when one failed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { ServiceBusAdministrationClient } from "@azure/service-bus";

const endpoint = process.env.SPRAG_ADMINISTRATION;
assert(endpoint, "SPRAG_ADMINISTRATION is host:port");
const key = process.env.SPRAG_ADMINISTRATION_KEY ?? "SAS_KEY_VALUE";
const tls = process.env.SPRAG_ADMINISTRATION_TLS === "1";
const prefix = `js${process.pid}-`;
const forEver = "P10675199DT2H48M5.4775807S";

const client = ({ name = "RootManageSharedAccessKey", secret = key, ...options } = {}) => {
  const connection = `Endpoint=sb://${endpoint}/;SharedAccessKeyName=${name};SharedAccessKey=${secret};UseDevelopmentEmulator=true`;
  const made = new ServiceBusAdministrationClient(connection, options);
  if (tls) return made;
  made.pipeline.addPolicy(
    {
      name: "plain",
      sendRequest(request, next) {
        request.url = request.url.replace("https://", "http://");
        request.allowInsecureConnection = true;
        return next(request);
      },
    },
    { afterPolicies: ["signingPolicy"] },
  );
  return made;
};

const admin = client();
const failed = [];
const main = createRequire(import.meta.url).resolve("@azure/service-bus");
const { version } = JSON.parse(readFileSync(main.replace(/dist.*/, "package.json"), "utf8"));
console.log(`@azure/service-bus ${version}, administration`);

async function scenario(name, run) {
  const started = performance.now();
  try {
    await run();
    console.log(`ok   ${name} (${((performance.now() - started) / 1000).toFixed(2)} s)`);
  } catch (error) {
    failed.push(name);
    console.log(`FAIL ${name}: ${error.stack ?? error}`);
  }
}

async function expect(code, statusCode, call, part = "") {
  const error = await call().then(
    () => assert.fail(`no ${code}`),
    (error) => error,
  );
  assert.equal(error.code, code, error.stack);
  assert.equal(error.statusCode, statusCode, error.stack);
  assert(error.message.includes(part), `${part} is not in ${error.message}`);
}

async function all(iterator) {
  const found = [];
  for await (const item of iterator) found.push(item);
  return found;
}

const mine = (items) => items.map((item) => item.name).filter((name) => name.startsWith(prefix));

await scenario("namespace properties", async () => {
  const found = await admin.getNamespaceProperties();
  assert.equal(found.name, endpoint.split(":")[0]);
  assert.equal(found.messagingSku, "Premium");
  assert.equal(found.messagingUnits, 1);
  assert(!Number.isNaN(found.createdAt.valueOf()) && !Number.isNaN(found.modifiedAt.valueOf()));
});

await scenario("queue with defaults", async () => {
  const { _response, ...made } = await admin.createQueue(`${prefix}q`);
  assert.deepEqual(made, {
    name: `${prefix}q`,
    forwardTo: undefined,
    userMetadata: undefined,
    lockDuration: "PT30S",
    maxSizeInMegabytes: 1024,
    maxDeliveryCount: 10,
    enablePartitioning: false,
    requiresSession: false,
    enableBatchedOperations: true,
    defaultMessageTimeToLive: forEver,
    autoDeleteOnIdle: forEver,
    requiresDuplicateDetection: false,
    duplicateDetectionHistoryTimeWindow: "PT10M",
    deadLetteringOnMessageExpiration: false,
    forwardDeadLetteredMessagesTo: undefined,
    authorizationRules: undefined,
    status: "Active",
    enableExpress: false,
    availabilityStatus: "Available",
    maxMessageSizeInKilobytes: 1024,
  });
});

await scenario("queue with all settings", async () => {
  const given = {
    lockDuration: "PT45S",
    maxSizeInMegabytes: 2048,
    maxMessageSizeInKilobytes: 2048,
    maxDeliveryCount: 8,
    requiresSession: true,
    requiresDuplicateDetection: true,
    duplicateDetectionHistoryTimeWindow: "PT2M",
    defaultMessageTimeToLive: "P2D",
    deadLetteringOnMessageExpiration: true,
    enableBatchedOperations: false,
    enableExpress: true,
    enablePartitioning: true,
    userMetadata: "owner <me> & you",
    forwardDeadLetteredMessagesTo: `${prefix}q`,
    status: "ReceiveDisabled",
  };
  await admin.createQueue(`${prefix}all`, { ...given });
  const made = await admin.getQueue(`${prefix}all`);
  for (const [name, value] of Object.entries(given)) {
    const expected = name === "forwardDeadLetteredMessagesTo" ? `sb://${endpoint}/${value}` : value;
    assert.deepEqual(made[name], expected, name);
  }
});

await scenario("queue read and written back", async () => {
  const before = await admin.getQueue(`${prefix}all`);
  const { _response, ...after } = await admin.updateQueue({ ...before, maxDeliveryCount: 9, status: "Active" });
  const { _response: _, ...expected } = before;
  assert.deepEqual(after, { ...expected, maxDeliveryCount: 9, status: "Active" });
  const forwarding = await admin.createQueue(`${prefix}forward`, { forwardTo: `${prefix}q` });
  assert.equal(forwarding.forwardTo, `sb://${endpoint}/${prefix}q`);
  assert.equal((await admin.updateQueue({ ...forwarding, forwardTo: undefined })).forwardTo, undefined);
});

await scenario("queue named like a path", async () => {
  const name = `${prefix}a/b.c_d`;
  assert.equal((await admin.createQueue(name)).name, name);
  assert.equal((await admin.getQueue(name)).name, name);
  assert.equal(await admin.queueExists(name), true);
  await admin.deleteQueue(name);
  assert.equal(await admin.queueExists(name), false);
});

await scenario("queue runtime properties", async () => {
  const found = await admin.getQueueRuntimeProperties(`${prefix}q`);
  const { name, createdAt, modifiedAt, accessedAt, _response, ...counts } = found;
  assert.equal(name, `${prefix}q`);
  for (const at of [createdAt, modifiedAt, accessedAt]) assert(Math.abs(Date.now() - at.valueOf()) < 600_000, String(at));
  assert.deepEqual(counts, {
    sizeInBytes: 0,
    totalMessageCount: 0,
    activeMessageCount: 0,
    deadLetterMessageCount: 0,
    scheduledMessageCount: 0,
    transferMessageCount: 0,
    transferDeadLetterMessageCount: 0,
  });
});

await scenario("queues listed over pages", async () => {
  const names = Array.from({ length: 115 }, (_, n) => `${prefix}list${String(n).padStart(3, "0")}`);
  for (const name of names) await admin.createQueue(name);
  const listed = mine(await all(admin.listQueues())).filter((name) => name.includes("list"));
  assert.deepEqual(listed, names);
  const sizes = [];
  for await (const page of admin.listQueues().byPage({ maxPageSize: 50 })) sizes.push(page.length);
  assert(sizes.length >= 3 && sizes.slice(0, -1).every((size) => size === 50), String(sizes));
  const runtime = await all(admin.listQueuesRuntimeProperties());
  assert(names.every((name) => runtime.find((queue) => queue.name === name)?.totalMessageCount === 0));
  for (const name of names) await admin.deleteQueue(name);
});

await scenario("queue errors", async () => {
  await expect("MessageEntityAlreadyExistsError", 409, () => admin.createQueue(`${prefix}q`));
  for (const call of ["getQueue", "getQueueRuntimeProperties", "deleteQueue"]) {
    await expect("MessageEntityNotFoundError", 404, () => admin[call](`${prefix}none`));
  }
  const found = await admin.getQueue(`${prefix}q`);
  await expect("MessageEntityNotFoundError", 404, () => admin.updateQueue({ ...found, name: `${prefix}none` }));
  await expect("ServiceError", 400, () => admin.updateQueue({ ...found, requiresSession: true }), "requires_session");
  const rule = { claimType: "SharedAccessKey", accessRights: ["Send"], keyName: "k", primaryKey: "a", secondaryKey: "b" };
  for (const [given, part] of [
    [{ lockDuration: "PT6M" }, "lock_duration"],
    [{ lockDuration: "soon" }, "LockDuration"],
    [{ maxDeliveryCount: 0 }, "max_delivery_count"],
    [{ autoDeleteOnIdle: "PT10M" }, "AutoDeleteOnIdle"],
    [{ authorizationRules: [rule] }, "AuthorizationRules"],
    [{ forwardTo: `${prefix}nowhere` }, "nowhere"],
  ]) {
    await expect("ServiceError", 400, () => admin.createQueue(`${prefix}bad`, given), part);
  }
});

await scenario("topics", async () => {
  const { _response, ...made } = await admin.createTopic(`${prefix}t`, { defaultMessageTimeToLive: "P2D", userMetadata: "topic" });
  assert.deepEqual(made, {
    name: `${prefix}t`,
    maxSizeInMegabytes: 1024,
    enablePartitioning: false,
    supportOrdering: true,
    enableBatchedOperations: true,
    defaultMessageTimeToLive: "P2D",
    autoDeleteOnIdle: forEver,
    requiresDuplicateDetection: false,
    duplicateDetectionHistoryTimeWindow: "PT10M",
    authorizationRules: undefined,
    userMetadata: "topic",
    status: "Active",
    enableExpress: false,
    availabilityStatus: "Available",
    maxMessageSizeInKilobytes: 1024,
  });
  await admin.createTopic(`${prefix}t2`, { requiresDuplicateDetection: true, supportOrdering: false });
  assert.equal((await admin.getTopic(`${prefix}t2`)).supportOrdering, false);
  assert.equal((await admin.updateTopic({ ...made, status: "Disabled" })).status, "Disabled");
  assert.equal((await admin.updateTopic({ ...made, status: "Active" })).status, "Active");
  assert.deepEqual(mine(await all(admin.listTopics())), [`${prefix}t`, `${prefix}t2`]);
  assert.deepEqual(mine(await all(admin.listTopicsRuntimeProperties())), [`${prefix}t`, `${prefix}t2`]);
  const runtime = await admin.getTopicRuntimeProperties(`${prefix}t`);
  assert.deepEqual([runtime.subscriptionCount, runtime.sizeInBytes, runtime.scheduledMessageCount], [0, 0, 0]);
  assert.equal(await admin.topicExists(`${prefix}t2`), true);
  await admin.deleteTopic(`${prefix}t2`);
  assert.equal(await admin.topicExists(`${prefix}t2`), false);
  await expect("MessageEntityAlreadyExistsError", 409, () => admin.createTopic(`${prefix}t`));
});

await scenario("subscriptions", async () => {
  const topic = `${prefix}t`;
  const { _response, ...made } = await admin.createSubscription(topic, "s", {
    lockDuration: "PT20S",
    requiresSession: true,
    maxDeliveryCount: 4,
    deadLetteringOnMessageExpiration: true,
    deadLetteringOnFilterEvaluationExceptions: false,
    defaultMessageTimeToLive: "PT1H",
    userMetadata: "sub",
    forwardDeadLetteredMessagesTo: `${prefix}q`,
  });
  assert.deepEqual(made, {
    subscriptionName: "s",
    topicName: topic,
    lockDuration: "PT20S",
    maxDeliveryCount: 4,
    requiresSession: true,
    enableBatchedOperations: true,
    defaultMessageTimeToLive: "PT1H",
    autoDeleteOnIdle: forEver,
    deadLetteringOnMessageExpiration: true,
    deadLetteringOnFilterEvaluationExceptions: false,
    forwardDeadLetteredMessagesTo: `sb://${endpoint}/${prefix}q`,
    forwardTo: undefined,
    userMetadata: "sub",
    status: "Active",
    availabilityStatus: "Available",
  });
  const rule = { name: "only-red", filter: { subject: "red" }, action: { sqlExpression: "SET seen = 1" } };
  await admin.createSubscription(topic, "s2", { defaultRuleOptions: rule, forwardTo: `${prefix}q` });
  const rules = await all(admin.listRules(topic, "s2"));
  assert.deepEqual(rules.map((it) => [it.name, it.filter.subject, it.action.sqlExpression]), [["only-red", "red", "SET seen = 1"]]);
  assert.equal((await admin.updateSubscription({ ...made, maxDeliveryCount: 5 })).maxDeliveryCount, 5);
  assert.equal((await admin.getSubscription(topic, "s")).maxDeliveryCount, 5);
  const names = (items) => items.map((item) => item.subscriptionName);
  assert.deepEqual(names(await all(admin.listSubscriptions(topic))), ["s", "s2"]);
  assert.deepEqual(names(await all(admin.listSubscriptionsRuntimeProperties(topic))), ["s", "s2"]);
  const runtime = await admin.getSubscriptionRuntimeProperties(topic, "s");
  assert.deepEqual([runtime.topicName, runtime.totalMessageCount, runtime.activeMessageCount], [topic, 0, 0]);
  assert.equal((await admin.getTopicRuntimeProperties(topic)).subscriptionCount, 2);
  await expect("MessageEntityAlreadyExistsError", 409, () => admin.createSubscription(topic, "s"));
  await expect("MessageEntityNotFoundError", 404, () => admin.getSubscription(topic, "none"));
  await expect("MessageEntityNotFoundError", 404, () => admin.createSubscription(`${prefix}none`, "s"));
  await admin.deleteSubscription(topic, "s2");
  assert.equal(await admin.subscriptionExists(topic, "s2"), false);
});

await scenario("rules", async () => {
  const topic = `${prefix}t`;
  const plain = ({ _response, ...rule }) => JSON.parse(JSON.stringify(rule));
  assert.deepEqual(plain(await admin.getRule(topic, "s", "$Default")), {
    name: "$Default",
    filter: { sqlExpression: "1=1" },
    action: {},
  });
  const at = new Date("2026-11-30T01:02:03.004Z");
  const parameters = { "@text": "x < y", "@number": 7, "@half": 2.5, "@flag": true, "@at": at };
  const sql = { sqlExpression: "a = @text AND b = @number AND c > @half AND d = @flag AND e < @at", sqlParameters: parameters };
  const action = { sqlExpression: "SET z = @z", sqlParameters: { "@z": 1 } };
  await admin.createRule(topic, "s", "sql", sql, action);
  const found = await admin.getRule(topic, "s", "sql");
  assert.deepEqual(found.filter, sql);
  assert.deepEqual(found.action, action);
  const correlation = {
    correlationId: "c",
    subject: "l",
    to: "to",
    replyTo: "r",
    replyToSessionId: "rs",
    sessionId: "s",
    messageId: "m",
    contentType: "ct",
    applicationProperties: { text: "value", number: 7, flag: false, at },
  };
  await admin.createRule(topic, "s", "correlation", correlation);
  assert.deepEqual((await admin.getRule(topic, "s", "correlation")).filter, correlation);
  assert.deepEqual((await all(admin.listRules(topic, "s"))).map((rule) => rule.name), ["$Default", "correlation", "sql"]);
  const changed = await admin.updateRule(topic, "s", { ...found, filter: { sqlExpression: "a = 2" }, action: undefined });
  assert.equal(changed.filter.sqlExpression, "a = 2");
  assert.equal(changed.action.sqlExpression, undefined);
  await expect("MessageEntityAlreadyExistsError", 409, () => admin.createRule(topic, "s", "sql", { sqlExpression: "1=1" }));
  await expect("ServiceError", 400, () => admin.createRule(topic, "s", "bad", { sqlExpression: "a >" }), "at character");
  await expect("MessageEntityNotFoundError", 404, () => admin.getRule(topic, "s", "none"));
  assert.equal(await admin.ruleExists(topic, "s", "sql"), true);
  await admin.deleteRule(topic, "s", "sql");
  assert.equal(await admin.ruleExists(topic, "s", "sql"), false);
});

await scenario("only with the key", async () => {
  await expect("UnauthorizedRequestError", 401, () => client({ secret: "wrong" }).getQueue(`${prefix}q`), "signature");
  await expect("UnauthorizedRequestError", 401, () => client({ name: "nobody" }).getQueue(`${prefix}q`), "no key");
});

await scenario("all versions of the API", async () => {
  for (const serviceVersion of ["2021-05", "2017-04"]) {
    assert.equal((await client({ serviceVersion }).getQueue(`${prefix}q`)).name, `${prefix}q`);
  }
});

await scenario("all is removed", async () => {
  await admin.deleteTopic(`${prefix}t`);
  for (const name of mine(await all(admin.listQueues()))) await admin.deleteQueue(name);
  assert.deepEqual([...mine(await all(admin.listQueues())), ...mine(await all(admin.listTopics()))], []);
});

console.log(failed.length ? `${failed.length} failed` : "all passed");
process.exit(failed.length ? 1 : 0);
