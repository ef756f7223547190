"""`python -m daybook`: the program `daybook`."""

from daybook.clients.cli.main import main

if __name__ == "__main__":
    main()
