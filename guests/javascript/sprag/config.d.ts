export function get(key: string): string | undefined;
export function all(): [string, string][];
