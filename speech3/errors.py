"""The one exception that a user's mistake may raise."""


class Speech3Error(Exception):
    """Something the user can mend: the message names the file, utterance or key at fault and what to do.

    The command line prints it as ``error: ...`` with exit status 1 and without a traceback.
    """
