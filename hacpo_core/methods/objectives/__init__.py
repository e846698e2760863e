"""Objectives: what an update maximises."""
