"""Settings of a process."""

import subprocess
import sys

SPEAKER = """
import os, sys
from flows.process import ignore_broken_output
ignore_broken_output()
sys.stdin.readline()  # until nobody reads the output
for stream in (sys.stdout, sys.stderr):
    print("a line", file=stream, flush=True)
    stream.write("more")
    stream.flush()
    assert stream.fileno() in (1, 2) and not stream.isatty() and stream.encoding
os._exit(7)
"""


def test_process_whose_output_nobody_reads_any_more_goes_on() -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", SPEAKER], stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait(60) == 7
