"""The normal form through the layout function: loop nests, the lifts that reshape them, and what they cost."""
