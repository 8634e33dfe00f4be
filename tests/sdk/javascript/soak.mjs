// Sends and receives with npm @azure/service-bus while faults happen (see faults.py): nothing that was accepted is lost, and nothing that was
// completed comes again.

import { createRequire } from "node:module";
import { connection, sleep } from "./scenario.mjs";

const require = createRequire(import.meta.url);
const { ServiceBusClient } = require("@azure/service-bus");

const until = Date.now() + Number(process.env.SPRAG_SECONDS) * 1_000;
const accepted = new Set();
// What was handed to us may be completed although we never heard of it, so only what was never handed to us is lost.
const handed = new Set();
const completed = new Set();
const again = [];
let faults = 0;
let stop = false;

// Faults surface as events of connections that nobody listens to any more.
process.on("uncaughtException", () => void (faults += 1));
process.on("unhandledRejection", () => void (faults += 1));

// A message whose send has failed may be there or not; sent again, it could be there twice.
const client = () => new ServiceBusClient(connection, { retryOptions: { maxRetries: 0, timeoutInMs: 5_000 } });

async function withClient(goes, action) {
  while (goes()) {
    const own = client();
    try {
      while (goes()) await action(own);
    } catch {
      faults += 1;
      await sleep(100);
    } finally {
      await Promise.race([own.close().catch(() => {}), sleep(1_000)]);
    }
  }
}

async function send(queue, sessions) {
  let number = 0;
  await withClient(
    () => Date.now() < until,
    async (own) => {
      const sender = own.createSender(queue);
      while (Date.now() < until) {
        const ids = Array.from({ length: 1 + (number % 5) }, (_, n) => `${queue}-${number + n}`);
        number += ids.length;
        await sender.sendMessages(
          ids.map((messageId) => ({ body: "x".repeat(500), messageId, ...(sessions ? { sessionId: `s${number % 5}` } : {}) })),
        );
        for (const id of ids) accepted.add(id);
      }
    },
  );
}

async function take(receiver) {
  const got = await receiver.receiveMessages(20, { maxWaitTimeInMs: 1_000 });
  for (const message of got) {
    handed.add(message.messageId);
    if (completed.has(message.messageId)) again.push(message.messageId);
    await receiver.completeMessage(message);
    completed.add(message.messageId);
  }
  return got.length;
}

async function receive(queue) {
  await withClient(
    () => !stop,
    async (own) => {
      const receiver = own.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
      while (!stop) await take(receiver);
    },
  );
}

async function receiveSessions(queue) {
  await withClient(
    () => !stop,
    async (own) => {
      const session = await own.acceptNextSession(queue);
      try {
        while (!stop && (await take(session)) > 0);
      } finally {
        await Promise.race([session.close(), sleep(1_000)]);
      }
    },
  );
}

void send("soak", false);
void send("soak-sessions", true);
void receive("soak");
void receiveSessions("soak-sessions");
void receiveSessions("soak-sessions");

const lost = () => [...accepted].filter((id) => !handed.has(id));
while (Date.now() < until + 120_000) {
  await sleep(500);
  if (Date.now() > until + 6_000 && lost().length === 0) break;
}
stop = true;
const good = lost().length === 0 && again.length === 0 && accepted.size > 100;
console.log(
  `${good ? "ok  " : "FAIL"} JavaScript under faults: ${accepted.size} accepted, ${completed.size} completed, ${faults} errors,`,
  `lost ${lost().slice(0, 5)} (${lost().length}), again ${again.slice(0, 5)}`,
);
process.exit(good ? 0 : 1);
