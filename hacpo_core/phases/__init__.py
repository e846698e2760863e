"""The phases of a step, one file each. Every phase reads its input from the ledger and commits its output there."""
