-- What the fake's statements call, and the catalogue as they ask for it.
CREATE SCHEMA sys;

CREATE FUNCTION sysutcdatetime() RETURNS timestamp LANGUAGE sql VOLATILE AS $$ SELECT clock_timestamp() AT TIME ZONE 'UTC' $$;
CREATE FUNCTION datediff_big(unit text, one timestamp, other timestamp) RETURNS bigint LANGUAGE sql IMMUTABLE AS
  $$ SELECT CASE WHEN unit = 'millisecond' THEN floor(extract(epoch FROM other) * 1000)::bigint - floor(extract(epoch FROM one) * 1000)::bigint END $$;
CREATE FUNCTION datalength(value text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT octet_length(value)::bigint $$;
CREATE FUNCTION charindex(part text, whole text) RETURNS int LANGUAGE sql IMMUTABLE AS
  $$ SELECT CASE WHEN part = '' THEN 0 ELSE strpos(whole, part) END $$;

-- Types as they were declared: PostgreSQL has one for bytes and one for texts.
CREATE TABLE sys.declared (table_schema text, table_name text, column_name text, data_type text, length bigint, collation_name text);

CREATE VIEW sys.information_schema_columns AS SELECT table_schema AS "TABLE_SCHEMA", table_name AS "TABLE_NAME", column_name AS "COLUMN_NAME",
  data_type AS "DATA_TYPE", length AS "CHARACTER_MAXIMUM_LENGTH", collation_name AS "COLLATION_NAME"
  FROM sys.declared d WHERE EXISTS (SELECT 1 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = d.table_schema AND c.relname = d.table_name AND a.attname = d.column_name AND NOT a.attisdropped);
CREATE VIEW sys.schemas AS SELECT oid::bigint AS schema_id, nspname::text AS name FROM pg_namespace;
CREATE VIEW sys.tables AS SELECT oid::bigint AS object_id, relnamespace::bigint AS schema_id, relname::text AS name FROM pg_class WHERE relkind = 'r';
CREATE VIEW sys.columns AS SELECT attrelid::bigint AS object_id, attnum::bigint AS column_id, attname::text AS name FROM pg_attribute
  WHERE attnum > 0 AND NOT attisdropped;
CREATE VIEW sys.indexes AS SELECT indrelid::bigint AS object_id, indexrelid::bigint AS index_id, indisunique::int AS is_unique,
  (indpred IS NOT NULL)::int AS has_filter, (NOT indisvalid)::int AS is_disabled FROM pg_index;
CREATE VIEW sys.index_columns AS SELECT i.indrelid::bigint AS object_id, i.indexrelid::bigint AS index_id, k.column_id::bigint AS column_id,
  k.n AS key_ordinal FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(column_id, n);
