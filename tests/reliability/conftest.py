"""The parts of the suite are modules beside each other, which also run as programs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
