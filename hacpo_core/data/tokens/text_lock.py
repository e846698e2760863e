"""The lock of whatever calls a tokenizer."""

from __future__ import annotations

import threading

TEXT_LOCK = threading.RLock()
"""held while tokenizing: agents side by side work in threads, and tokenizers are not thread-safe"""
