"""Reading streams and topics: what a query plans in the driver, and what its tasks read."""
