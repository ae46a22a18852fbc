"""Owning partitions: leases, assignment, and the consumer that handles what its partitions deliver."""
