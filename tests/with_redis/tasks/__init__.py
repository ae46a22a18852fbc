"""Tests of the task layer on real servers."""
