export type Value =
  | null
  | undefined
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | Date
  | { tag: 'decimal' | 'uuid' | 'json'; val: string };
export function query(database: string, statement: string, parameters?: Value[]): Record<string, any>[];
export function execute(database: string, statement: string, parameters?: Value[]): number;
