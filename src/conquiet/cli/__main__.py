"""`python -m conquiet.cli`."""

from conquiet.cli.main import main

main()
