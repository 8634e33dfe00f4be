-- Version 2, frozen: leases on messages in hand (mode `lease`).
--
-- owner: one acquisition of one process, never used twice. expires_at null: handed off.

CREATE TABLE sprag_lease (
  hash bytea PRIMARY KEY,
  endpoint text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  owner text COLLATE "C" NOT NULL,
  taken_at bigint NOT NULL,
  expires_at bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- For the purge and the listing.
CREATE INDEX sprag_lease_age ON sprag_lease (endpoint, taken_at);
