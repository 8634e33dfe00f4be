// Prints tokens as npm @azure/service-bus makes them, one JSON object a line. See README.md.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.cwd()}/`));
const path = require("node:path");
const entry = require.resolve("@azure/service-bus");
const root = path.join(path.dirname(entry), "..");
const inner = createRequire(entry);
const { createSasTokenProvider } = inner("@azure/core-amqp");
const { ServiceBusAdministrationClient } = require("@azure/service-bus");
const { version } = JSON.parse(readFileSync(path.join(root, "package.json"), "utf8"));
const madeBy = `@azure/service-bus ${version} (npm)`;
const [name, key] = ["RootManageSharedAccessKey", "bm90IGEgcmVhbCBrZXkgKyBidXQgb25lPQ=="];

const print = (made, name, key, path, token) => {
  const expires = Number(/[& ]se=([0-9]+)/.exec(token)[1]);
  console.log(JSON.stringify({ made_by: `${madeBy}, ${made}`, name, key, path, expires, token }));
};

for (const [name_, key_, audience, path] of [
  [name, key, "sb://shop.servicebus.windows.net/orders", "orders"],
  [name, key, "sb://localhost/Shop/Subscriptions/billing/$management", "shop/subscriptions/billing/$management"],
  ["policy with spaces/+ü", "SAS_KEY_VALUE", "sb://localhost:5673/a queue+b~ü", "a queue+b~ü"],
]) {
  const provider = createSasTokenProvider({ sharedAccessKeyName: name_, sharedAccessKey: key_ });
  print("AMQP", name_, key_, path, (await provider.getToken(audience)).token);
}

// The administration client signs requests: the token is read from what it would send.
for (const [ask, path] of [
  [(client) => client.getQueue("Orders/Incoming"), "orders/incoming"],
  [(client) => client.getNamespaceProperties(), "$namespaceinfo"],
  [(client) => client.getSubscription("shop", "billing"), "shop/subscriptions/billing"],
]) {
  let token;
  const look = (request) => {
    token = request.headers.get("authorization");
    throw new Error("only looked at");
  };
  const connection = `Endpoint=sb://localhost:5300/;SharedAccessKeyName=${name};SharedAccessKey=${key}`;
  const client = new ServiceBusAdministrationClient(connection);
  client.pipeline.addPolicy({ name: "look", sendRequest: look }, { afterPolicies: ["signingPolicy"] });
  await ask(client).catch(() => undefined);
  print("administration", name, key, path, token);
}
