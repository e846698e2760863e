"""Builders: which rows make up which mini-batch."""
