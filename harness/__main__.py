"""`python -m harness` is the command `calipers`."""

from harness.cli import main

main()
