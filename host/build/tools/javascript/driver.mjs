// node driver.mjs ENTRY WIT WORLD OUT: makes a component of a JavaScript or TypeScript handler.

import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { componentize } from '@bytecodealliance/componentize-js';
import { build } from 'esbuild';

const [entry, witPath, worldName, out] = process.argv.slice(2);
const bundle = join(process.cwd(), 'bundle.js');

try {
  // The engine in the component finds no packages, so what the handler imports goes into one file. What the host gives stays an import.
  await build({
    entryPoints: [entry],
    outfile: bundle,
    bundle: true,
    format: 'esm',
    platform: 'neutral',
    mainFields: ['module', 'main'],
    target: 'es2023',
    external: ['sprag:*', 'wasi:*'],
    logLevel: 'error',
  });
} catch {
  // esbuild has said what is wrong, with the line.
  process.exit(1);
}

try {
  // Clocks, random numbers and console.log go through the host; nothing else of a browser is there.
  const { component } = await componentize({
    sourcePath: bundle,
    witPath,
    worldName,
    disableFeatures: ['http', 'fetch-event'],
  });
  await writeFile(out, component);
} catch (error) {
  console.error(error.message ?? error);
  process.exit(1);
}
