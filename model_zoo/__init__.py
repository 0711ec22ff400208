"""Where models come from. Knows models, knows nothing of backends."""
