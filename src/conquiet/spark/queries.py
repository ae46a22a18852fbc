"""What Spark tells every task of a streaming query about it, as local properties."""

#: Kept by the checkpoint: a new checkpoint is a new query, whose batches are numbered from 0 again.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
