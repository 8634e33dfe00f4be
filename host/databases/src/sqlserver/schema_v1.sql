-- Version 1, frozen: a change of the tables is a new step. `#name` is a table of the host's schema.
--
-- Times are milliseconds since 1970 in UTC. `hash` is the identity hash of (endpoint, id): 32 bytes that stand for ids of any length, so that no
-- index depends on how long an id is, and no comparison on what letters are in it or on spaces at its end, which SQL Server does not see. Other
-- `_key` columns are hashes for the same reason.

CREATE TABLE #final (
  hash binary(32) NOT NULL PRIMARY KEY,
  endpoint nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  message_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  noted_at bigint NOT NULL
);
CREATE INDEX final_age ON #final (noted_at);

-- A few rows at a time: what is done is forgotten.
CREATE TABLE #decision (
  hash binary(32) NOT NULL PRIMARY KEY,
  endpoint nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  message_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  outcome nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
  rest varbinary(max) NOT NULL,
  noted_at bigint NOT NULL
);
CREATE INDEX decision_age ON #decision (noted_at);

-- outcome null: only history is known. The kept message is in three columns: header null where none is. message_key and source_key are null where
-- they would be the event's own.
CREATE TABLE #event (
  hash binary(32) NOT NULL PRIMARY KEY,
  endpoint nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  event_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  message_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  source_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  session_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  event_type nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  outcome nvarchar(40) COLLATE Latin1_General_100_BIN2 NULL,
  reason nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  error_kind nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  error_text nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  attempts bigint NOT NULL,
  handler nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  digest varbinary(32) NULL,
  enqueued_at bigint NOT NULL,
  noted_at bigint NOT NULL,
  kept_session nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  kept_header varbinary(max) NULL,
  kept_body varbinary(max) NULL,
  id_key binary(32) NOT NULL,
  message_key binary(32) NULL,
  source_key binary(32) NULL,
  session_key binary(32) NULL
);
CREATE INDEX event_outcome ON #event (outcome, noted_at, hash);
CREATE INDEX event_id ON #event (id_key);
CREATE INDEX event_message ON #event (message_key);
CREATE INDEX event_source ON #event (source_key);
CREATE INDEX event_session ON #event (session_key, outcome, noted_at);

CREATE TABLE #history (
  event binary(32) NOT NULL,
  n bigint IDENTITY(1,1) NOT NULL,
  kind nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
  noted_at bigint NOT NULL,
  message_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  outcome nvarchar(40) COLLATE Latin1_General_100_BIN2 NULL,
  attempt bigint NOT NULL,
  started_at bigint NULL,
  took bigint NULL,
  handler nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  digest varbinary(32) NULL,
  reason nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  error_kind nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  error_text nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  by_whom nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  PRIMARY KEY (event, n)
);

-- The version is a new number of one counter at every write, because a value is replaced by a new row: none is ever used twice. state_key is the
-- key with its bytes 0 and 1 written in two, because zeros at the end of bytes do not count in comparisons; key_start is as much of it as an index
-- takes.
CREATE TABLE #state (
  hash binary(32) NOT NULL PRIMARY KEY,
  endpoint_key binary(32) NOT NULL,
  key_start varbinary(800) NOT NULL,
  state_key varbinary(max) NOT NULL,
  version bigint IDENTITY(1,1) NOT NULL,
  content varbinary(max) NOT NULL
);
CREATE INDEX state_order ON #state (endpoint_key, key_start);

-- lane: a hash of entity and session, null without a session. again_at null: poison.
CREATE TABLE #outbox (
  id bigint IDENTITY(1,1) NOT NULL PRIMARY KEY,
  endpoint_key binary(32) NOT NULL,
  endpoint nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  entity nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  session_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  lane binary(32) NULL,
  message_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  event_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  created_at bigint NOT NULL,
  tries bigint NOT NULL,
  error nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  again_at bigint NULL,
  claimed_until bigint NOT NULL,
  header varbinary(max) NOT NULL,
  body varbinary(max) NOT NULL
);
CREATE INDEX outbox_lane ON #outbox (lane, id);

CREATE TABLE #audit (
  id bigint IDENTITY(1,1) NOT NULL PRIMARY KEY,
  noted_at bigint NOT NULL,
  by_whom nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  verb nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  endpoint nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  target nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  reason nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  events bigint NOT NULL
);
CREATE INDEX audit_age ON #audit (noted_at);

CREATE TABLE #action (
  id bigint IDENTITY(1,1) NOT NULL PRIMARY KEY,
  kind nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
  endpoint nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  event_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  session_id nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  reason nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  by_whom nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
  noted_at bigint NOT NULL,
  state nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
  end_text nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
  ended_at bigint NULL,
  audit bigint NOT NULL
);
CREATE INDEX action_audit ON #action (audit);

-- One open action per target is the one winner (P15). target: a hash of the event, or of the session where the action is on a whole one.
CREATE TABLE #open_action (
  target binary(32) NOT NULL PRIMARY KEY,
  action_id bigint NOT NULL
);
CREATE INDEX open_action_action ON #open_action (action_id);

-- What a repeated request is answered with. hash: of the request's idempotency key.
CREATE TABLE #action_key (
  hash binary(32) NOT NULL PRIMARY KEY,
  action_id bigint NOT NULL
);
CREATE INDEX action_key_action ON #action_key (action_id);

-- Rows to stand in line at: whoever changes one is alone until its transaction ends.
CREATE TABLE #gate (
  slot bigint NOT NULL PRIMARY KEY,
  passed bigint NOT NULL
);
