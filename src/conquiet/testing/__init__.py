"""What users need to test their handlers, tasks and DAGs, and their own adapters by a contract suite each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.testing.clock import move_clock as move_clock
    from conquiet.testing.crashes import survives_crashes as survives_crashes
    from conquiet.testing.delivery import deliver as deliver, deliver_batch as deliver_batch
    from conquiet.testing.middleware_contract import MiddlewareContract as MiddlewareContract
    from conquiet.testing.payload_store_contract import PayloadStoreContract as PayloadStoreContract
    from conquiet.testing.rate_limiter_contract import RateLimiterContract as RateLimiterContract
    from conquiet.testing.result_store_contract import ResultStoreContract as ResultStoreContract
    from conquiet.testing.schedule_store_contract import ScheduleStoreContract as ScheduleStoreContract
    from conquiet.testing.task_test_bed import TaskTestBed as TaskTestBed

# On first use: pytest loads the plugin of this package in every project, and tasks are an extra.
_NAMES_OF = {
    "clock": "move_clock",
    "crashes": "survives_crashes",
    "delivery": "deliver deliver_batch",
    "middleware_contract": "MiddlewareContract",
    "payload_store_contract": "PayloadStoreContract",
    "rate_limiter_contract": "RateLimiterContract",
    "result_store_contract": "ResultStoreContract",
    "schedule_store_contract": "ScheduleStoreContract",
    "task_test_bed": "TaskTestBed",
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _NAMES_OF)
