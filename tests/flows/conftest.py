"""Fixtures of the tests of flows."""

from tests.flows.webhook import webhook as webhook
