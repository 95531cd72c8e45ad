"""`speech3 doctor`: the hardware that speech3 will use, and the optional parts that are missing."""

from pathlib import Path


def command() -> None:
    """Print what speech3 will use (cores, BLAS, GPUs, memory, disk) and which optional parts are missing.

    `speech3 doctor`
    """
    from speech3.reports.doctor import examine

    for finding in examine(Path.cwd()):
        print(f"{finding.name:16} {finding.value}")
        if finding.remedy:
            print(f"{'':16} -> {finding.remedy}")
