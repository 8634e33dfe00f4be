CREATE TABLE account (name varchar(64) PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0));
CREATE TABLE report (name varchar(64) PRIMARY KEY, transfers bigint NOT NULL, cents bigint NOT NULL);
CREATE TABLE statement (id varchar(64) PRIMARY KEY, account varchar(64) NOT NULL, cents bigint NOT NULL);
