// One line for each scenario, and an exit code that says whether all went well.

export const connection = process.env.SPRAG_SERVICEBUS;
if (!connection) throw new Error("SPRAG_SERVICEBUS is the connection string");
const only = process.argv[2] ?? "";
const failed = [];
let passed = 0;

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export async function scenario(name, action) {
  if (!name.includes(only)) return;
  const began = Date.now();
  const seconds = () => `(${((Date.now() - began) / 1000).toFixed(2)} s)`;
  let timer;
  try {
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("not within 60 seconds")), 60_000);
    });
    const said = await Promise.race([action(), late]);
    passed += 1;
    console.log(`ok   ${name} ${seconds()}${said === undefined ? "" : ` ${said}`}`);
  } catch (error) {
    failed.push(name);
    console.log(`FAIL ${name} ${seconds()}: ${error.stack}`);
  } finally {
    clearTimeout(timer);
  }
}

// The error of an action that has to fail, with this code.
export async function fails(code, action) {
  try {
    await action();
  } catch (error) {
    if (error.code === code) return error;
    throw new Error(`code ${code} was expected`, { cause: error });
  }
  throw new Error(`code ${code} was expected, and nothing failed`);
}

export function end() {
  console.log(`${passed} passed, ${failed.length} failed`, ...failed);
  process.exit(failed.length > 0 || passed === 0 ? 1 : 0);
}
