"""``python -m tokendraw``."""

from tokendraw.cli import main

if __name__ == "__main__":
    main()
