"""Measurements: both sides in one run, ratios printed. No test asserts what they say."""
