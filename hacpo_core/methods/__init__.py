"""The parts of a method and the implementations shipped for each, one file per implementation."""
