"""The HTML report: one page that holds everything it needs."""
