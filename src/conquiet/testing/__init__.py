"""What users need to test their tasks, and their own adapters by a contract suite for each protocol."""

from conquiet.testing.middleware_contract import MiddlewareContract
from conquiet.testing.payload_store_contract import PayloadStoreContract
from conquiet.testing.rate_limiter_contract import RateLimiterContract
from conquiet.testing.result_store_contract import ResultStoreContract
from conquiet.testing.schedule_store_contract import ScheduleStoreContract
from conquiet.testing.task_test_bed import TaskTestBed

__all__ = [
    "MiddlewareContract",
    "PayloadStoreContract",
    "RateLimiterContract",
    "ResultStoreContract",
    "ScheduleStoreContract",
    "TaskTestBed",
]
