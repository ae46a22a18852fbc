"""A handler that several DAGs name as "billing:bill"; Airflow finds modules in the DAGs folder by themselves.

In your own project it is rather a module of an installed package: "my_company.orders:bill".
"""

from sqlalchemy import text


def bill(msg, session):
    """Bill one order; what is written here and the ack of the message stand or fall together."""
    session.execute(text("INSERT INTO bills (order_id, cents) VALUES (:order_id, :cents)"), msg.payload)
