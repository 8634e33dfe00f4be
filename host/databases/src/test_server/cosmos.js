// A stand-in for Cosmos DB: npm's @vercel/cosmosdb-server, with what it leaves out and an inbox depends on. Says its port on the first line, and
// ends when its input does. Argument: the account's key.
const crypto = require("crypto");
const { createHttpServer } = require("@vercel/cosmosdb-server");

const key = Buffer.from(process.argv[2], "base64");
const server = createHttpServer({ keepAlive: true });
const [answer] = server.listeners("request");
server.removeAllListeners("request");

// It takes any signature. This one is checked as the service documents it.
function signed(request) {
  const path = decodeURIComponent(request.url.split("?")[0]).replace(/^\/+|\/+$/g, "");
  const parts = path === "" ? [] : path.split("/");
  const ofOne = parts.length % 2 === 0;
  const kind = parts.length === 0 ? "" : parts[parts.length - (ofOne ? 2 : 1)];
  const link = ofOne ? path : parts.slice(0, -1).join("/");
  const text = `${request.method.toLowerCase()}\n${kind}\n${link}\n${(request.headers["x-ms-date"] || "").toLowerCase()}\n\n`;
  const signature = crypto.createHmac("sha256", key).update(text).digest("base64");
  const recent = Math.abs(Date.parse(request.headers["x-ms-date"]) - Date.now()) < 900_000;
  return recent && decodeURIComponent(request.headers.authorization || "") === `type=master&ver=1.0&sig=${signature}`;
}

server.on("request", (request, response) => {
  if (!signed(request)) {
    response.writeHead(401, { "content-type": "application/json" });
    response.end('{"code":"Unauthorized","message":"wrong signature"}');
    return;
  }
  const end = response.end.bind(response);
  response.end = (body) => {
    // 1.0.1 falls over its own feet where a point read finds nothing; the service answers 404.
    const ofDocument = /\/docs\/[^/]+$/.test(request.url);
    if (request.method === "GET" && ofDocument && response.statusCode === 500 && /of undefined/.test(String(body))) {
      response.statusCode = 404;
    }
    return end(body);
  };
  answer(request, response);
});
// What it says about such a read is no news.
console.error = () => {};
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
