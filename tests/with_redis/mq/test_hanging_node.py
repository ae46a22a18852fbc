"""One node of a cluster hangs: the partitions of the others stay with their owner."""

from __future__ import annotations

import os
import signal

import pytest

from conquiet import EmbeddedServer
from conquiet.errors import QueueError
from conquiet.mq import Topics
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.servers import for_each_partition
from conquiet.queue.connection import open_client
from tests.with_redis.mq.consuming import GROUP


@pytest.fixture
def cluster():
    """Three nodes that stay in a cluster with one that hangs."""
    args = ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000"]
    with EmbeddedServer(cluster=3, args=args) as server:
        yield server


@pytest.fixture
def hang(cluster):
    """Stops a node, by its port, until the test is over."""
    stopped = []

    def stop(port):
        stopped.append(cluster.pids[cluster.ports.index(port)])
        os.kill(stopped[-1], signal.SIGSTOP)

    yield stop
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_the_leases_on_other_nodes_are_renewed_and_the_one_that_hangs_is_waited_for_once(cluster, hang, name):
    with open_client(cluster.url, socket_timeout=2) as client:
        topic = Topics(client).create(name, 12)
        nodes = [client.get_node_from_key(topic.keys.stream(number)).port for number in topic.partitions]
        healthy = [number for number in topic.partitions if nodes[number] != nodes[0]]
        assert nodes.count(nodes[0]) > 1
        store = LeaseStore(topic, GROUP)
        leases = [store.acquire(number, "anna", 600_000) for number in topic.partitions]
        asked, renewed = [], []

        def renew(number):
            asked.append(number)
            if store.renew(leases[number], 600_000):
                renewed.append(number)

        hang(nodes[0])
        with pytest.raises(QueueError):
            for_each_partition(topic, topic.partitions, renew)

        assert renewed == healthy
        assert asked == [0, *healthy]
