-- Enqueues one task, now or later, unless it was enqueued before.
--
-- KEYS[1] the queue's meta   KEYS[2] the stream of its priority   KEYS[3] the task's record
-- KEYS[4] the delayed set    KEYS[5] the delayed items            KEYS[6] the unique key   KEYS[7] the feed of listeners
-- ARGV[1] now, ms, or ''     ARGV[2] the task's id                ARGV[3] its envelope
-- ARGV[4] its priority       ARGV[5] delay, ms                    ARGV[6] how long its record is kept, ms; 0 for none
-- ARGV[7] unique for so long, ms, or 0                            ARGV[8] its name   ARGV[9] the history's line
-- ARGV[10] the key of its arguments in the payload store, or ''
--
-- Returns {the id of the task, 1, 0}, or {the id of the one that was enqueued before, 0, whether that has other stored
-- arguments: then those of ARGV[10] are no task's}.

return enqueue_task(0, 0)
