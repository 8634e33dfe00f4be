-- Version 1, frozen: a change of the tables is a new step.
--
-- Times are milliseconds since 1970 in UTC. `hash` is the identity hash of (endpoint, id): 32 bytes that stand for ids of any length, so that no
-- index depends on how long an id is, and no collation on what letters are in it. Texts compare by bytes.

CREATE TABLE sprag_inbox (
  hash bytea PRIMARY KEY,
  endpoint text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  recorded_at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- For the purge and the listing.
CREATE INDEX sprag_inbox_age ON sprag_inbox (endpoint, recorded_at);

CREATE TABLE sprag_final (
  hash bytea PRIMARY KEY,
  endpoint text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  at bigint NOT NULL
);
CREATE INDEX sprag_final_age ON sprag_final (at);

-- A few rows at a time: what is done is forgotten.
CREATE TABLE sprag_decision (
  hash bytea PRIMARY KEY,
  endpoint text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  outcome text COLLATE "C" NOT NULL,
  rest bytea NOT NULL,
  at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- outcome null: only history is known. The kept message is in three columns: header null where none is.
CREATE TABLE sprag_event (
  hash bytea PRIMARY KEY,
  endpoint text COLLATE "C" NOT NULL,
  event_id text COLLATE "C" NOT NULL,
  message_id text COLLATE "C",
  source_id text COLLATE "C",
  session text COLLATE "C",
  event_type text COLLATE "C" NOT NULL,
  outcome text COLLATE "C",
  reason text COLLATE "C",
  error_kind text COLLATE "C",
  error_text text COLLATE "C",
  attempts bigint NOT NULL,
  handler text COLLATE "C",
  digest bytea,
  enqueued_at bigint NOT NULL,
  at bigint NOT NULL,
  kept_session text COLLATE "C",
  kept_header bytea,
  kept_body bytea
);
CREATE INDEX sprag_event_outcome ON sprag_event (outcome, at);
-- Hash indexes take texts of any length. The usual event has one id for all three.
CREATE INDEX sprag_event_id ON sprag_event USING hash (event_id);
CREATE INDEX sprag_event_message ON sprag_event USING hash (message_id) WHERE message_id <> event_id;
CREATE INDEX sprag_event_source ON sprag_event USING hash (source_id) WHERE source_id <> event_id;
-- Completed events are not in it: they are the many, and the usual message must not pay for a listing.
CREATE INDEX sprag_event_session ON sprag_event USING hash (session) WHERE outcome <> 'completed';
CREATE INDEX sprag_event_kept ON sprag_event (at) WHERE kept_header IS NOT NULL;

CREATE TABLE sprag_history (
  event bytea NOT NULL REFERENCES sprag_event (hash) ON DELETE CASCADE,
  n bigint GENERATED ALWAYS AS IDENTITY,
  kind text COLLATE "C" NOT NULL,
  at bigint NOT NULL,
  message_id text COLLATE "C",
  outcome text COLLATE "C",
  attempt bigint NOT NULL,
  started_at bigint,
  took bigint,
  handler text COLLATE "C",
  digest bytea,
  reason text COLLATE "C",
  error_kind text COLLATE "C",
  error_text text COLLATE "C",
  by_whom text COLLATE "C",
  PRIMARY KEY (event, n)
);

-- The versions of all values of all endpoints: one counter, so that none is ever used twice.
CREATE SEQUENCE sprag_version;

CREATE TABLE sprag_state (
  endpoint text COLLATE "C" NOT NULL,
  key bytea NOT NULL,
  version bigint NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (endpoint, key)
);

-- lane: a hash of entity and session, null without a session. again_at null: poison.
CREATE TABLE sprag_outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  endpoint text COLLATE "C" NOT NULL,
  entity text COLLATE "C" NOT NULL,
  session text COLLATE "C",
  lane bytea,
  message_id text COLLATE "C",
  event_id text COLLATE "C",
  created_at bigint NOT NULL,
  tries bigint NOT NULL DEFAULT 0,
  error text COLLATE "C",
  again_at bigint DEFAULT 0,
  claimed_until bigint NOT NULL DEFAULT 0,
  header bytea NOT NULL,
  body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX sprag_outbox_lane ON sprag_outbox (lane, id) WHERE lane IS NOT NULL;

CREATE TABLE sprag_audit (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at bigint NOT NULL,
  by_whom text COLLATE "C" NOT NULL,
  verb text COLLATE "C" NOT NULL,
  endpoint text COLLATE "C",
  target text COLLATE "C" NOT NULL,
  reason text COLLATE "C",
  count bigint NOT NULL
);
CREATE INDEX sprag_audit_age ON sprag_audit (at);

-- target: a hash of the event, or of the session where the action is on a whole one. idempotency_key: a hash of it.
CREATE TABLE sprag_action (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  endpoint text COLLATE "C" NOT NULL,
  event_id text COLLATE "C",
  session text COLLATE "C",
  target bytea NOT NULL,
  reason text COLLATE "C",
  by_whom text COLLATE "C" NOT NULL,
  at bigint NOT NULL,
  state text COLLATE "C" NOT NULL,
  text text COLLATE "C",
  ended_at bigint,
  idempotency_key bytea,
  audit bigint NOT NULL
);
-- One open action per target is the one winner (P15).
CREATE UNIQUE INDEX sprag_action_open ON sprag_action (target) WHERE state = 'open';
CREATE UNIQUE INDEX sprag_action_key ON sprag_action (idempotency_key);
CREATE INDEX sprag_action_audit ON sprag_action (audit);
