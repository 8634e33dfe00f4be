export function get(key: string): Uint8Array | undefined;
export function getText(key: string): string | undefined;
export function getJson(key: string): any;
export function set(key: string, value: string | Uint8Array): void;
export function setJson(key: string, value: unknown): void;
export function remove(key: string): void;
export function compareAndSet(
  key: string,
  expected: string | Uint8Array | undefined,
  value: string | Uint8Array | undefined,
): boolean;
export function scan(
  prefix: string,
  options?: { after?: string; limit?: number },
): { key: string; value: Uint8Array }[];
