"""`python -m conquiet.cli`."""

from conquiet.cli.script import main

main()
