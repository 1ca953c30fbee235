"""`python -m dspp`."""

from dspp.cli import main

if __name__ == "__main__":
    main()
