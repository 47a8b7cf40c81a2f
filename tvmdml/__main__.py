"""``python -m tvmdml``: the command, of the Python that is asked."""

from tvmdml.cli import main

main(prog_name="tvmdml")
