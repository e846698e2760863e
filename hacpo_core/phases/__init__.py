"""The phases of a step, one file each: what it reads from the ledger, and what it commits there."""
