"""``python -m plait`` is ``plait``."""

from plait.cli.main import main

if __name__ == "__main__":
    main()
