"""For operators: is the server safe, are the groups healthy, how fast does the backlog move."""

from conquiet.operations.checks import diagnose, worst_level
from conquiet.operations.database import DatabaseFacts, database_facts
from conquiet.operations.facts import GroupFacts, ServerFacts, TopicFacts, server_facts, topic_facts
from conquiet.operations.findings import Finding, Level
from conquiet.operations.rates import Rates, Sample, rates_between, take_samples

__all__ = [
    "DatabaseFacts",
    "Finding",
    "GroupFacts",
    "Level",
    "Rates",
    "Sample",
    "ServerFacts",
    "TopicFacts",
    "database_facts",
    "diagnose",
    "rates_between",
    "server_facts",
    "take_samples",
    "topic_facts",
    "worst_level",
]
