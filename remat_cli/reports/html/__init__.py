"""The HTML report: a single self-contained page."""
