"""A handler that several DAGs name as "billing:bill"; Airflow finds modules in the DAGs folder by themselves.

In your own project it is rather a module of an installed package: "my_company.orders:bill".
"""

from sqlalchemy import text


def bill(msg, session):
    """Bill one order; its message is acked only after this transaction is committed."""
    session.execute(text("INSERT INTO bills (order_id, cents) VALUES (:order_id, :cents)"), msg.payload)
