"""The pictures that no chapter draws: `python -m tests.tools.make_pictures`.

Chapter 10's animation and the guide's bars of a rollout's time. Both rest on stored
data and exact curves, so that a second run writes the same pictures.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from web.pictures import animation, speed

if __name__ == "__main__":
    animation.clip_to_gate()
    speed.draw_stored()
