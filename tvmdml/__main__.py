"""``python -m tvmdml``: the command ``tvmdml``, run by that Python."""

from tvmdml.cli import main

main(prog_name="tvmdml")
