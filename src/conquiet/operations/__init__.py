"""What an operator asks: is the server safe, are the groups well, how fast does the backlog move."""

from conquiet.operations.checks import diagnose
from conquiet.operations.facts import GroupFacts, ServerFacts, TopicFacts
from conquiet.operations.findings import Finding, Level, worst_level
from conquiet.operations.looking import look_at_servers, look_at_topic
from conquiet.operations.rates import Rates, Sample, rates_between
from conquiet.operations.sampling import take_samples

__all__ = [
    "Finding",
    "GroupFacts",
    "Level",
    "Rates",
    "Sample",
    "ServerFacts",
    "TopicFacts",
    "diagnose",
    "look_at_servers",
    "look_at_topic",
    "rates_between",
    "take_samples",
    "worst_level",
]
