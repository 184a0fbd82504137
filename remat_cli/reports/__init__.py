"""Reports for the terminal, as JSON and as files."""
