"""For operators: is the server safe, are the groups healthy, how fast does the backlog move."""

from conquiet.operations.checks import Finding, Level, diagnose, worst_level
from conquiet.operations.facts import GroupFacts, ServerFacts, TopicFacts, server_facts, topic_facts
from conquiet.operations.rates import Rates, Sample, rates_between, take_samples

__all__ = [
    "Finding",
    "GroupFacts",
    "Level",
    "Rates",
    "Sample",
    "ServerFacts",
    "TopicFacts",
    "diagnose",
    "rates_between",
    "server_facts",
    "take_samples",
    "topic_facts",
    "worst_level",
]
