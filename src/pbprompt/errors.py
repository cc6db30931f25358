"""Errors that speak to the person who ran the command."""


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line: the file, the field and the fix.

    The command line prints it without a traceback and exits with code 2.
    """


class BrokenInstallError(RuntimeError):
    """Something that came with the package is missing or damaged."""
