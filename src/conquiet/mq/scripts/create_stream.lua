-- Creates the stream of a partition, unless it is there.
--
-- KEYS[1] the stream
--
-- Returns 1.

create_stream(KEYS[1])
return 1
