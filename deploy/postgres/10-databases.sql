-- Run once, by an empty PostgreSQL: for each program a role of its own that owns a database of its own.
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv dagster_password DAGSTER_DB_PASSWORD
\getenv shop_password SHOP_DB_PASSWORD

CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE dagster LOGIN PASSWORD :'dagster_password';
CREATE ROLE shop LOGIN PASSWORD :'shop_password';

CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE dagster OWNER dagster;
CREATE DATABASE shop OWNER shop;
REVOKE CONNECT ON DATABASE airflow, dagster, shop FROM PUBLIC;

-- The transaction of a worker that is frozen ends, and another one handles its message.
ALTER DATABASE shop SET idle_in_transaction_session_timeout = '10min';

-- What the examples bill into; in dags/ and dagster_defs/ the same table.
\connect shop
SET ROLE shop;
CREATE TABLE bills (
    order_id VARCHAR(100) NOT NULL,
    cents INTEGER NOT NULL,
    billed_at TIMESTAMP NOT NULL DEFAULT now()
);
