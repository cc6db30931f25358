"""`python -m pbprompt` is the command `pbprompt`."""

from pbprompt.apps.cli import main

if __name__ == "__main__":
    main()
