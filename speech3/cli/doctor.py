"""`speech3 doctor`: what of this machine will be used, and what is missing."""

from pathlib import Path


def command() -> None:
    """Say what of this machine speech3 will use (cores, BLAS, GPUs, memory, disk) and which optional parts are missing.

    `speech3 doctor`
    """
    from speech3.reports.doctor import examine

    for finding in examine(Path.cwd()):
        print(f"{finding.name:16} {finding.value}")
        if finding.remedy:
            print(f"{'':16} -> {finding.remedy}")
