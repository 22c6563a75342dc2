"""The machine as an array, and the time that counts take on it."""
