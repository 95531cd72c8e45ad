"""Processes of whole runs wait at the gates of the engine's tests (`tiny.Gate`)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engine"))
