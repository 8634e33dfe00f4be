export type PropertyValue =
  | { tag: 'null' }
  | { tag: 'boolean'; val: boolean }
  | { tag: 'integer' | 'unsigned' | 'timestamp'; val: bigint }
  | { tag: 'float'; val: number }
  | { tag: 'text' | 'uuid'; val: string }
  | { tag: 'bytes'; val: Uint8Array };

export type Property = { name: string; value: PropertyValue };
export type PlainValue = null | boolean | number | bigint | string | Uint8Array | Date;
export type BodyKind = { tag: 'none' } | { tag: 'data' } | { tag: 'value' } | { tag: 'sections'; val: BigUint64Array };

export class Message {
  messageId?: string;
  eventId: string;
  eventType: string;
  sessionId?: string;
  correlationId?: string;
  contentType?: string;
  subject?: string;
  replyTo?: string;
  enqueuedAt: Date;
  properties: Property[];
  body: Uint8Array;
  bodyKind: BodyKind;
  text(): string;
  json(): any;
  property(name: string): PlainValue | undefined;
}

declare const ended: unique symbol;
export type Success = { readonly [ended]: unknown };
export class Failure extends Error {}

export function handler(functions: Record<string, (message: Message) => Success | void>): {
  describe(): { eventTypes: string[] };
  handle(raw: unknown): unknown;
};

export function discard(reason: string): Success;
export function handoff(reason: string, options?: { externalId?: string; expectedBy?: Date | number }): Success;
export function transient(text: string, options?: { retryAfter?: number }): Failure;
export function failed(kind: string, text: string, options?: { retryAfter?: number }): Failure;
export function deadLetter(reason: string, text: string): Failure;

export interface OutgoingMessage {
  entity: string;
  eventType: string;
  messageId?: string;
  sessionId?: string;
  correlationId?: string;
  contentType?: string;
  properties?: Record<string, PlainValue> | Property[];
  json?: unknown;
  body?: string | Uint8Array;
}

export function publish(message: OutgoingMessage): string;
export function schedule(message: OutgoingMessage, at: Date | number): string;

export const context: {
  endpoint(): string;
  handler(): string;
  attempt(): number;
  remaining(): number;
  trace(): { traceparent: string; tracestate?: string } | undefined;
};

export const log: Record<'debug' | 'info' | 'warn' | 'error', (text: unknown) => void>;

export function answered<T>(what: string, call: () => T): T;
