"""`MessageQueueTrigger(scheme="redis+stream")` is a MessageTrigger."""

from __future__ import annotations

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher

from airflow_provider_conquiet.queues.redis_stream import RedisStreamMessageQueueProvider
from airflow_provider_conquiet.triggers.message import MessageTrigger


def test_the_scheme_leads_to_the_message_trigger_with_all_arguments(stream: str):
    by_scheme = MessageQueueTrigger(scheme="redis+stream", stream=stream, fields=["order_id"])

    assert by_scheme.serialize() == MessageTrigger(stream=stream, fields=["order_id"]).serialize()
    assert Asset("orders", watchers=[AssetWatcher(name="orders", trigger=by_scheme)]).watchers


def test_it_does_not_take_the_scheme_of_airflows_own_provider():
    provider = RedisStreamMessageQueueProvider()

    assert provider.scheme_matches("redis+stream")
    assert not provider.scheme_matches("redis+pubsub")


def test_an_argument_that_the_trigger_does_not_have_is_refused_when_the_dag_is_read(stream: str):
    with pytest.raises(TypeError, match="chanels"):
        MessageQueueTrigger(scheme="redis+stream", stream=stream, chanels="x").serialize()
