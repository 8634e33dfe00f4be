// Case A79: the broker closes links and connections that are idle (here after 2 seconds), and the SDK goes on as if nothing had been.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { connection, end, scenario, sleep } from "./scenario.mjs";

const require = createRequire(import.meta.url);
const { ServiceBusClient } = require("@azure/service-bus");
const IDLE = 2_000;

await scenario("a client that does nothing for a while goes on", async () => {
  const client = new ServiceBusClient(connection);
  const [sender, receiver] = [client.createSender("plain"), client.createReceiver("plain")];
  for (let n = 0; n < 3; n += 1) {
    const began = Date.now();
    await sender.sendMessages({ body: n });
    const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 5_000 });
    assert.equal(message.body, n);
    await receiver.completeMessage(message);
    assert.ok(Date.now() - began < 10_000);
    // Links first, and then their connection.
    await sleep(3 * IDLE);
  }
  await client.close();
});

end();
