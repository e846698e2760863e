"""The hardware files against the planner's own sums."""

from benchmarks.memory_tables import BEGIN, END, PAGE, memory_table


def test_every_pair_of_the_paper_fits_each_hardware_file_and_the_page_says_so() -> None:
    table = memory_table()
    assert "(!)" not in table
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert written == table, "python -m benchmarks.memory_tables writes the page anew"
